"""Is the recipe what it says, and are mistakes in it refused in words?"""

from __future__ import annotations

from pathlib import Path

import pytest
from small_recipes import SHAPE
from training.network import Network
from training.recipe import BUNDLED, Shape, read_recipe, recipe_of

from moesaic.core.errors import ImpossibleSetting


def test_parameters_are_counted_as_the_network_has_them() -> None:
    counted = sum(weight.numel() for weight in Network(SHAPE).parameters())
    assert SHAPE.parameters == counted


def test_the_bundled_model_fits_its_size() -> None:
    shape = read_recipe(BUNDLED).shape
    assert 18.5e6 < shape.parameters < 19.7e6  # 40 MB in bf16, with room for the tokenizer
    assert shape.experts in (32, 64)
    assert shape.top_k in (4, 8)
    assert 8 <= shape.layers <= 12


def test_a_recipe_survives_being_written_down() -> None:
    recipe = read_recipe(BUNDLED)
    assert recipe_of(recipe.as_dict()) == recipe


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[shape]\nlayer = 3", "'layer' is none of the fields of [shape]"),
        ("[shapes]\nlayers = 3", "'shapes' is none of the tables"),
        ("[shape]\nlayers = '3'", "shape.layers must be a int"),
        ("[shape]\ntop_k = 40", "top_k 40 must be 1 to the number of experts"),
        ("[shape]\nhidden = 30", "hidden 30"),
        ("[data]\nprose_share = 2.0", "prose_share 2.0 must be 0 to 1"),
        ("shape = 3", "shape must be a table"),
        ("[shape", "cannot be read"),
    ],
)
def test_mistakes_are_refused_with_a_message(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(ImpossibleSetting) as refused:
        read_recipe(tmp_path / "r.toml")
    assert said in str(refused.value)


def test_sizes_that_grouped_products_cannot_take_are_refused() -> None:
    with pytest.raises(ImpossibleSetting, match="multiples of 8"):
        Shape(expert_width=20)
