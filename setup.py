"""Builds the C++ core (torch_tiny._C); everything else is in pyproject.toml."""

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

# The core that is about to be replaced may not go with the package any more.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import torch
import torch._decomp
from setuptools import Extension, setup
from torch.utils.cpp_extension import BuildExtension, CppExtension, get_cxx_compiler

CSRC = Path("torch_tiny", "csrc")
# Not -fopenmp when linking: the runtime is to be torch's own, which comes with its libraries.
# Some compilers link libstdc++ statically; a second copy beside torch's crashes in its locales.
LINK = ["-l:libstdc++.so.6"]
FLAGS = ["-std=c++20", "-O2", "-g0", "-fvisibility=hidden", "-fno-plt", "-fopenmp", "-Wall"]

# For make tsan and make asan, in folders of their own. vptr needs types that torch hides.
SANITIZERS = {
    "": [],
    "thread": ["-fsanitize=thread", "-Wno-tsan"],
    "address": ["-fsanitize=address,undefined", "-fno-sanitize=vptr", "-D_GLIBCXX_ASSERTIONS"],
}
SANITIZER = os.environ.get("TORCH_TINY_SANITIZE", "")
# What most files begin with, compiled once: it takes half of their time.
HEADERS = (
    *("ATen/Context.h", "ATen/EmptyTensor.h", "ATen/core/dispatch/Dispatcher.h"),
    *("ATen/record_function.h", "c10/core/impl/VirtualGuardImpl.h", "torch/library.h"),
)
# Lines in what they report, and our own checks beside theirs.
CHECKED = ["-O1", "-g1", "-fno-omit-frame-pointer", "-DTINY_CHECKS"]
CHECKS = [*SANITIZERS[SANITIZER], *(CHECKED if SANITIZER else [])]


class BuildCore(BuildExtension):
    """Compiles what changed, and notes what it was compiled with beside the result."""

    def finalize_options(self) -> None:
        super().finalize_options()
        # An editable install gives a fresh folder each time, which would compile everything anew.
        self.build_temp = str(Path("build", SANITIZER, "objects"))

    def build_extension(self, ext: Extension) -> None:
        # As torch's are a system's headers, nobody is warned of what is in them.
        ext.extra_compile_args += [f"-isystem{Path(at).absolute()}" for at in ext.include_dirs]
        ext.extra_compile_args += ["-include", str(self.precompiled(ext.extra_compile_args))]
        super().build_extension(ext)

    def precompiled(self, flags: list[str]) -> Path:
        """A header of torch's, which the compiler reads compiled if all flags are the same."""
        command = [get_cxx_compiler(), *self.compiler.compiler_so[1:], *flags]
        about = repr((command, torch.__version__, compiler()))
        name = f"torch-{hashlib.sha256(about.encode()).hexdigest()[:12]}"
        header = Path(self.build_temp, name, "torch.h").absolute()
        compiled = header.with_suffix(".h.gch")
        if not compiled.exists():
            header.parent.mkdir(parents=True, exist_ok=True)
            header.write_text("".join(f"#include <{name}>\n" for name in HEADERS))
            language = ["-x", "c++-header", str(header), "-o", str(compiled)]
            subprocess.run([*command, *language], check=True)
        return header

    def run(self) -> None:
        super().run()
        folder = Path(self.get_ext_fullpath("torch_tiny._C")).parent
        (folder / "_build.py").write_text(
            '"""Written by setup.py: what torch_tiny._C was compiled with."""\n\n'
            f'TORCH = "{torch.__version__}"\n'
            f'COMPILER = "{compiler()}"\n'
        )
        (folder / "_schemas.json").write_text(schemas())


def schemas() -> str:
    """For torch_tiny.schemas, which the package would import torch_tiny for."""
    spec = importlib.util.spec_from_file_location("schemas", "torch_tiny/schemas.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    found = {}
    for schema in torch._C._jit_get_all_schemas():
        name = f"{schema.name}.{schema.overload_name}".removesuffix(".")
        if name.startswith("aten::"):
            found[name] = module.written_down(schema)
    table = {**torch._decomp.decomposition_table, **torch._decomp.core_aten_decompositions()}
    names = (str(op).replace(".", "::", 1).removesuffix(".default") for op in table)
    return json.dumps({"schemas": found, "decomposed": sorted(names)})


def compiler() -> str:
    """The C++ compiler's own first line about itself."""
    answer = subprocess.run([get_cxx_compiler(), "--version"], capture_output=True, text=True)
    return answer.stdout.splitlines()[0].replace('"', "'")


setup(
    ext_modules=[
        CppExtension(
            "torch_tiny._C",
            sorted(map(str, CSRC.rglob("*.cpp"))),
            depends=sorted(map(str, CSRC.rglob("*.h"))),
            extra_compile_args=[*FLAGS, f"-I{CSRC.absolute()}", *CHECKS],
            extra_link_args=LINK + CHECKS,
        )
    ],
    cmdclass={"build_ext": BuildCore},
)
