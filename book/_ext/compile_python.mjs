// Bytecode of NumPy and our archives, which a page would else wait for: node compile_python.mjs PYODIDE FILE [ARCHIVE TO]…
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [place, made, ...archives] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(join(place, "pyodide.mjs")));
const pyodide = await loadPyodide({ packages: ["numpy"] });

// Of what chapters import. Not to be compared with its sources each time: they come in archives whose sha256 is known.
const COMPILE = `
import io, pathlib, py_compile, sys, zipfile
sys.path += ["/book/site"]
import attnbook.checks, attnbook.diagnose, attnbook.figures
paths = {pathlib.Path(m.__file__) for m in list(sys.modules.values()) if getattr(m, "__file__", None)}
out = io.BytesIO()
with zipfile.ZipFile(out, "w") as packed:
    for path in sorted(paths):
        if path.suffix == ".py" and path.is_file():
            made = py_compile.compile(path, doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
            packed.writestr(zipfile.ZipInfo(made[1:]), pathlib.Path(made).read_bytes(), zipfile.ZIP_DEFLATED, 9)
out.getvalue()
`;

for (let i = 0; i < archives.length; i += 2) {
  pyodide.unpackArchive(new Uint8Array(readFileSync(archives[i])), "zip", { extractDir: archives[i + 1] });
}
writeFileSync(made, pyodide.runPython(COMPILE).toJs());
