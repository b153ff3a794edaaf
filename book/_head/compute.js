// One head: its steps, computed when they are asked for, and what each test says of a wrong one.

const kinds = new Map();

// What computes a head with these steps replaced: each is asked for once, and kept.
function kindOf(wrong) {
  if (!kinds.has(wrong)) {
    const kind = {};
    for (const [name, step] of Object.entries({ ...STEPS, ...wrong })) {
      Object.defineProperty(kind, name, {
        get() {
          return (this.kept[name] ??= step(this));
        },
      });
    }
    kinds.set(wrong, kind);
  }
  return kinds.get(wrong);
}

// Every result of the numbers { Q, K, V, dO, mask, scale }.
function head({ Q, K, V, dO, mask, scale }, wrong) {
  const given = { Q, K, V, dO, mask, given_scale: scale, causal: false, kept: {} };
  return Object.assign(Object.create(kindOf(wrong)), given, {
    n_q: Q.length,
    n_k: K.length,
    d_k: Q[0].length,
    d_v: V[0].length,
  });
}

// The result of that name, or in words why there is none.
function result(a, name) {
  try {
    return a[name];
  } catch (error) {
    if (error instanceof RangeError) return error.message;
    throw error;
  }
}

// L = M + log Z: what is added up for it has no step of its own.
function logsumexp(S) {
  const M = max(S, -1);
  const from = where(isneginf(M), 0, M);
  return add(from, log(sum(exp(sub(S, from)), -1)));
}

const total = (T) => T.flat().reduce((sum, x) => sum + x, 0);
const sizes = each(Math.abs);
const largest = (T) => Math.max(0, ...sizes(T).flat());
const OF = { dQ: "Q", dK: "K", dV: "V" };
const moved = (T, t, step) => add(T, mul(step, t));
const loss = (numbers, wrong) => total(mul(numbers.dO, head(numbers, wrong).O));

// The difference quotient of the loss where one entry moves.
function quotient(numbers, name, i, j) {
  const t = numbers[name].map((row, r) => row.map((_, c) => Number(r === i && c === j)));
  const at = (step) => loss({ ...numbers, [name]: moved(numbers[name], t, step) });
  return (at(TOLERANCES.step) - at(-TOLERANCES.step)) / (2 * TOLERANCES.step);
}

// --- The tests. Each returns the names of what it finds wrong: none, where it passes.

const first = (T) => T.slice(0, 1);
const ones = (T) => mul(0, T).map((row) => row.fill(1));

const wrongShape = (a, numbers) =>
  Object.keys(OF).filter((name) => !isTable(result(a, name)) || words(a[name]) !== words(numbers[OF[name]]));

// A gradient against a central difference in one direction, relative to what is added up: check_vjp does the same.
function byDifferences(numbers, wrong, forward) {
  const a = head(numbers, wrong);
  const misshapen = wrongShape(a, numbers);
  const off = Object.keys(OF).filter((name) => {
    if (misshapen.includes(name)) return false;
    const T = numbers[OF[name]];
    const t = T.map((row, i) => row.map((_, j) => DIRECTION[i][j]));
    const at = (step) => head({ ...numbers, [OF[name]]: moved(T, t, step) }, forward).O;
    const terms = mul(numbers.dO, div(sub(at(TOLERANCES.step), at(-TOLERANCES.step)), 2 * TOLERANCES.step));
    const added = total(sizes(terms)) + total(sizes(mul(numbers.dO, head(numbers, forward).O)));
    return !(Math.abs(total(mul(a[name], t)) - total(terms)) <= TOLERANCES.differences * (added || 1));
  });
  return [...misshapen, ...off];
}

const differs = (A, B, size) => !isTable(A) || words(A) !== words(B) || !(largest(sub(A, B)) <= TOLERANCES.exact * size);

const TESTS = {
  shapes: (numbers, wrong) => wrongShape(head(numbers, wrong), numbers),
  rows(numbers, wrong) {
    const dS = result(head(numbers, wrong), "dS");
    return isTable(dS) && largest(sum(dS, -1)) <= TOLERANCES.exact * Math.max(1, largest(dS)) ? [] : ["dS"];
  },
  ones: (numbers, wrong) => byDifferences({ ...numbers, dO: ones(numbers.dO) }, wrong),
  one(numbers, wrong) {
    const [Q, dO, mask] = [numbers.Q, numbers.dO, numbers.mask].map(first);
    return byDifferences({ ...numbers, Q, dO, mask }, wrong);
  },
  equal: (numbers, wrong) => byDifferences({ ...numbers, Q: mul(0, numbers.Q) }, wrong),
  own: (numbers, wrong) => byDifferences(numbers, wrong, wrong),
  random: (numbers, wrong) => byDifferences(numbers, wrong),
  autograd(numbers, wrong) {
    const [a, right] = [head(numbers, wrong), head(numbers)];
    const size = Math.max(1, ...Object.keys(OF).map((name) => largest(right[name])));
    return Object.keys(OF).filter((name) => differs(result(a, name), right[name], size));
  },
};
