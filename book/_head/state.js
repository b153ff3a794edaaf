// What a reader may enter, and what a link may hold: numbers of a fixed form, and nothing that is not checked.
const LIMIT = 1000;
const NUMBER = /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d{1,3})?$/i;
const MATRICES = ["Q", "K", "V", "dO"];
const QUERIES = 2;
const WIDTH = 2;
const rowsOf = (keys) => ({ Q: QUERIES, K: keys, V: keys, dO: QUERIES });

// The number that a text says; or an error, in words, why it says none.
function readNumber(text) {
  const plain = text.trim().replaceAll("−", "-");
  if (!plain) throw new RangeError("is empty");
  if (/^[-+]?\d+,\d+$/.test(plain)) throw new RangeError(`is “${plain}”: write a point, not a comma`);
  if (!NUMBER.test(plain)) throw new RangeError(`is “${plain.slice(0, 20)}”, which is not a number`);
  if (Math.abs(Number(plain)) > LIMIT) throw new RangeError(`is beyond ±${LIMIT}`);
  return Number(plain);
}

// What is typed may be a quotient, or a root, as a scale mostly is: 1/3, sqrt(2), 1/√2.
function readTyped(text) {
  const [all, over, root, under] =
    /^\s*(?:([^/]+)\/)?\s*(?:((?:(?:math|np)\.)?sqrt|√)\s*\(?)?\s*([\d.]+)\s*\)?\s*$/.exec(text) ?? [];
  if (!(over || root)) return readNumber(text);
  const below = readNumber(under);
  if (over && !below) throw new RangeError(`is “${all.trim().slice(0, 20)}”, which divides by 0`);
  const found = (over ? readNumber(over) : 1) * (root ? Math.sqrt(below) : below) ** (over ? -1 : 1);
  if (Math.abs(found) > LIMIT) throw new RangeError(`is beyond ±${LIMIT}`);
  return found;
}

// The rows of a pasted matrix: lines, or brackets as NumPy prints them.
function readMatrix(text, [rows, cols]) {
  const lines = text.replace(/\]\s*,?\s*\[/g, "\n").replace(/[[\]()]|np\.|array/g, " ").trim().split(/\s*[\n;]\s*/);
  const found = lines.map((line) => line.trim().split(/\s*,\s*|\s+/));
  if (found.length !== rows || found.some((row) => row.length !== cols)) {
    const widths = [...new Set(found.map((row) => row.length))];
    const came = widths.length === 1 ? `${found.length}×${widths[0]}` : "rows of different lengths";
    throw new RangeError(`takes ${rows}×${cols} numbers, and this is ${came}`);
  }
  return found.map((row) => row.map(readNumber));
}

const PARTS = /^Q=([^&]*)&K=([^&]*)&V=([^&]*)&dO=([^&]*)&scale=([^&]*)&mask=([01]*)&wrong=([a-z0-9-]*)&at=(dQ|dK|dV)([0-2])([01])$/;

// The state as the end of a link, and back.
function written({ numbers, wrong, at }) {
  const matrices = MATRICES.map((name) => `${name}=${numbers[name].flat().join(",")}`);
  const mask = numbers.mask.flat().map(Number).join("");
  return `head:${matrices.join("&")}&scale=${numbers.scale ?? ""}&mask=${mask}&wrong=${wrong}&at=${at.join("")}`;
}

function readState(hash) {
  if (hash.length > 900) throw new RangeError("it is too long");
  const found = PARTS.exec(hash.replace(/^#?head:/, ""));
  if (!found) throw new RangeError("its parts are not those of a head");
  const [, Q, K, V, dO, scale, mask, wrong, name, i, j] = found;
  const keys = mask.length / QUERIES;
  if (![2, 3].includes(keys)) throw new RangeError(`its mask has ${mask.length} entries, not 4 or 6`);
  const numbers = { scale: scale ? saying("the scale", () => readNumber(scale)) : null };
  for (const [of, text] of Object.entries({ Q, K, V, dO })) {
    const rows = rowsOf(keys)[of];
    const given = text.split(",");
    if (given.length !== rows * WIDTH) throw new RangeError(`its ${of} has ${given.length} numbers, not ${rows * WIDTH}`);
    numbers[of] = reshape([given.map((part) => saying(`an entry of ${of}`, () => readNumber(part)))], rows, WIDTH);
  }
  numbers.mask = reshape([[...mask].map((one) => one === "1")], QUERIES, keys);
  if (wrong && !Object.hasOwn(MISTAKES, wrong)) throw new RangeError("it names a mistake that is not here");
  if (i >= rowsOf(keys)[OF[name]]) throw new RangeError(`it points at a row that ${name} has not`);
  return { numbers, wrong, at: [name, Number(i), Number(j)] };
}

function saying(name, read) {
  try {
    return read();
  } catch (error) {
    error.message = `${name} ${error.message}`;
    throw error;
  }
}
