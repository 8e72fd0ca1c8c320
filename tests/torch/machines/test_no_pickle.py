"""Nothing that comes from the network or from a file is ever unpickled by code of digrad."""

import ast
from pathlib import Path

import digrad

FORBIDDEN = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
CALLS = {
    "all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list", "send_object_list",
    "recv_object_list", "rpc_sync", "rpc_async",
}  # fmt: skip


def test_no_module_of_the_torch_engine_imports_or_calls_what_unpickles() -> None:
    root = Path(digrad.__file__).parent
    files = sorted((root / "torch").rglob("*.py"))
    assert len(files) > 30
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            names: set[str] = set()
            if isinstance(node, ast.Import):
                names = {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names = {(node.module or "").split(".")[0], *(alias.name for alias in node.names)}
            elif isinstance(node, ast.Attribute):
                is_torch_load = (
                    isinstance(node.value, ast.Name) and node.value.id == "torch" and node.attr == "load"
                )
                names = {node.attr} | ({"pickle"} if is_torch_load else set())
            assert not names & (FORBIDDEN | CALLS), f"{path.name}:{getattr(node, 'lineno', 0)} {names}"
