"""The package's structures and enumerators are those of the header, member by member."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import tempfile
import unittest

from shoal import _library as c
from support import SOURCE

HEADER = os.path.join(SOURCE, "include", "shoal", "shoal.h")


def in_c(lines: list[str]) -> list[str]:
    """What a C program over the header prints, statement by statement."""
    source = ("#include <shoal/shoal.h>\n#include <stdio.h>\nint main(void) {\n"
              + "\n".join(lines) + "\nreturn 0; }\n")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "print")
        subprocess.run(["cc", "-x", "c", "-", "-I", os.path.join(SOURCE, "include"), "-o", path],
                       input=source, text=True, check=True)
        return subprocess.run([path], capture_output=True, text=True, check=True).stdout.split()


def declared(tag: str) -> list[str]:
    """The names of a structure's members, in the header's order."""
    with open(HEADER, encoding="utf-8") as file:
        text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)
    body = re.search(rf"struct {tag} \{{(.*?)\n\}};", text, re.S)[1]
    body = re.sub(r"\(\*(\w+)\)\([^)]*\)", r"\1", body)  # pointers to functions
    return [re.sub(r"\[.*?\]", "", part).split()[-1].lstrip("*")
            for line in body.split(";") if line.strip() for part in line.split(",")]


class Structs(unittest.TestCase):
    def test_members_lie_where_the_header_has_them(self) -> None:
        with open(HEADER, encoding="utf-8") as file:
            header = file.read()
        stores = "struct shoal_store_request {" in header
        structs = [s for s in c.Struct.__subclasses__()
                   if stores or not s.c_name.startswith("shoal_store_")]
        self.assertGreaterEqual(len(structs), 8)
        lines, expected = [], []
        for struct in structs:
            tag = f"struct {struct.c_name}"
            names = [name for name, _ in struct._fields_]
            self.assertEqual(names, declared(struct.c_name), struct.c_name)
            lines.append(f'printf("%zu\\n", sizeof({tag}));')
            expected.append((tag, ctypes.sizeof(struct)))
            for name in names:
                member = getattr(struct, name)
                lines.append(f'printf("%zu\\n%zu\\n", offsetof({tag}, {name}), '
                             f'sizeof((({tag} *)0)->{name}));')
                expected += [(f"offset of {tag}.{name}", member.offset),
                             (f"size of {tag}.{name}", member.size)]
        found = [(what, int(value)) for (what, _), value in zip(expected, in_c(lines))]
        self.assertEqual(found, expected)

    def test_enumerators_have_the_header_s_values(self) -> None:
        names = {f"SHOAL_{'E_' if s else ''}{s.name}": s.value for s in c.Status}
        names.update({f"SHOAL_PHASE_{n.upper()}": i for i, n in enumerate(c.PHASES)})
        names["SHOAL_PHASES"] = len(c.PHASES)
        for option, choices in c.CHOICES.items():
            prefix = option.replace("vae_", "").upper()
            names.update({f"SHOAL_{prefix}_{n.upper()}": i for i, n in enumerate(choices)})
        names["SHOAL_AUTO"] = c.AUTO
        found = in_c([f'printf("%d\\n", {name});' for name in names])
        self.assertEqual(dict(zip(names, map(int, found))), names)
        found = in_c(['printf("%llu\\n", (unsigned long long)SHOAL_UNLIMITED);',
                      "puts(SHOAL_VERSION);"])
        self.assertEqual(found, [str(c.UNLIMITED), c.VERSION])


if __name__ == "__main__":
    unittest.main()
