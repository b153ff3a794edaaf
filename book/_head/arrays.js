// What the translated lines call: NumPy's functions on lists of rows and on numbers. Sums keep their axis.
const isTable = Array.isArray;
const shape = (T) => [T.length, T[0].length];
const size = (T) => T.length && T[0].length;
const words = (T) => shape(T).join("×");

// f for each entry, where a number or a single row or column stands for as many as the others have.
function each(f) {
  const value = (T, i, j) => {
    if (!isTable(T)) return T;
    const row = T[T.length === 1 ? 0 : i];
    return row[row.length === 1 ? 0 : j];
  };
  return (x, y, z) => {
    const tables = [x, y, z].filter(isTable);
    if (!tables.length) return f(x, y, z);
    const [rows, cols] = [0, 1].map((axis) => Math.max(...tables.map((T) => shape(T)[axis])));
    for (const T of tables) {
      if ((T.length !== 1 && T.length !== rows) || (T[0].length !== 1 && T[0].length !== cols)) {
        throw new RangeError(`shapes ${tables.map(words).join(" and ")} do not fit`);
      }
    }
    const found = [];
    for (let i = 0; i < rows; i++) {
      const row = [];
      for (let j = 0; j < cols; j++) row.push(f(value(x, i, j), value(y, i, j), value(z, i, j)));
      found.push(row);
    }
    return found;
  };
}

const add = each((x, y) => x + y);
const sub = each((x, y) => x - y);
const mul = each((x, y) => x * y);
const div = each((x, y) => x / y);
const pow = each((x, y) => x ** y);
const floordiv = each((x, y) => Math.floor(x / y));
const and = each((x, y) => x && y);
const xor = each((x, y) => x !== y);
const equal = each((x, y) => x === y);
const where = each((which, x, y) => (which ? x : y));
const exp = each(Math.exp);
const log = each(Math.log);
const isinf = each((x) => Math.abs(x) === Infinity);
const isneginf = each((x) => x === -Infinity);

const mT = (T) => T[0].map((_, j) => T.map((row) => row[j]));
const columns = (T, [from, to]) => T.map((row) => row.slice(from ?? 0, to ?? undefined));
const concatenate = (parts) => parts[0].map((_, i) => parts.flatMap((T) => T[i]));
const broadcast_to = (T, [rows, cols]) => where(true, T, Array(rows).fill(Array(cols).fill(0)));

function matmul(A, B) {
  if (A[0].length !== B.length) throw new RangeError(`shapes ${words(A)} and ${words(B)} do not fit`);
  return A.map((row) => B[0].map((_, j) => row.reduce((sum, x, k) => sum + x * B[k][j], 0)));
}

function fold(T, axis, f) {
  if (isTable(axis)) return axis.reduce((folded, one) => fold(folded, one, f), T);
  return axis === -1 ? T.map((row) => [row.reduce(f)]) : mT(fold(mT(T), -1, f));
}
const sum = (T, axis) => fold(T, axis, (x, y) => x + y);
const max = (T, axis) => fold(T, axis, (x, y) => Math.max(x, y));

// A table of one axis is one row.
function reshape(T, ...dims) {
  const numbers = T.flat();
  const [rows, cols] = dims.flat().length === 2 ? dims.flat() : [1, numbers.length];
  return Array.from({ length: rows }, (_, i) => numbers.slice(i * cols, (i + 1) * cols));
}
