from typing import Any

class Conductor:
    bytes_moved: int
    def __init__(
        self,
        sizes: dict[str, int],
        brain: dict[str, int],
        fields: dict[str, int],
        mailbox: dict[str, int],
        table: dict[str, int],
        cpu: dict[str, int],
        flag: int,
        context: int,
        stream: int,
        host_copy_ns: int,
    ) -> None: ...
    def place(self, indices: list[int]) -> list[int]: ...
    def begin(self, step: int, tokens: int) -> None: ...
    def finish(self) -> None: ...
    def decisions(self) -> list[tuple[Any, ...]]: ...
    def times(self) -> list[tuple[int, ...]]: ...
