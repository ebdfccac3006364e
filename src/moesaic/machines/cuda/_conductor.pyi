from typing import Any

class Conductor:
    bytes_moved: int
    forecasts_in_time: int
    forecasts_late: int
    right_wants: int
    judged_wants: int
    def __init__(
        self,
        sizes: dict[str, int],
        brain: dict[str, int],
        fields: dict[str, int],
        mailbox: dict[str, int],
        cpu: dict[str, int],
        flag: int,
        context: int,
        stream: int,
        device_flag: int,
        host_copy_ns: int,
    ) -> None: ...
    def place(self, indices: list[int]) -> list[int]: ...
    def slots(self) -> list[int]: ...
    def load_slots(self, slot_of: list[int]) -> None: ...
    def begin(
        self,
        step: int,
        tokens: int,
        layout: dict[str, int],
        forecasts: int,
        recorded: bool,
        wants: dict[str, int],
    ) -> None: ...
    def release(self) -> None: ...
    def finish(self) -> None: ...
    def decisions(self) -> list[tuple[Any, ...]]: ...
    def work(self) -> list[tuple[Any, ...]]: ...
    def take_copies(self) -> list[tuple[Any, ...]]: ...
    def times(self) -> list[tuple[int, ...]]: ...
