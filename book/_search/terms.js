// What is typed, and what stands in the book, as terms: one way to write each letter, and the stems of words.
// Run in the page, and while the site is built. Stemmer is Porter's, as Sphinx has it.
function makeTerms(Stemmer, { same, idle }) {
  const stemmer = new Stemmer();
  const letter = String.raw`(?:[Ww]_?[QKVOqkvo]|[Bb]_?[QKVOqkvo]|[Xx]_?mem|[QKVOSPXYTqkvopsxy])`;
  const gradients = String.raw`grad(?:ient)?s?`;
  const loss = String.raw`(?:L|l|E|J|loss)`;
  const latex = [
    [/\\[td]?frac\s*\{((?:[^{}]|\{[^{}]*\})*)\}\s*\{((?:[^{}]|\{[^{}]*\})*)\}/g, " $1/$2 "],
    [/\\(?:partial|mathrm\s*\{\s*d\s*\})\s*/g, "∂"],
    [/\\nabla\s*/g, "∇"],
    [/\\(?:ell|mathcal\s*\{?L\}?)/g, "L"],
    [/\\(?:mathbf|mathrm|mathsf|mathit|text|operatorname|boldsymbol|bm|hat|tilde|bar|dot|left|right|[bB]ig[lrg]*)(?![a-z])/g, ""],
    [/\\(?:top|intercal)(?![a-z])/g, "T"],
    [/\\(?:cdot|circ|odot|times|q?quad|begin|end)(?![a-z])/g, " "],
    [/\\/g, " "],
  ];
  const written = [
    [/√/g, " sqrt "],
    [/(\d)\s*[×x]\s*(?=\d)/g, "$1x"],
    [/([A-Za-z])\.m?T\b/g, "$1T"],
    [/\^\s*\{?\s*T\b\s*\}?/g, "T"],
    [/_\s*\{\s*(\w+)[\s,]*\}(T\b)?/g, "_$1$2 "],
    [/(?<=[A-Za-z])_[ij][jlk]?(?![A-Za-z])/g, ""], // one entry is found where all of them are
    [/[d∂]\s*P(?:_\w+)?\s*\/\s*[d∂]\s*S(?:_\w+)?/g, " jacobian of softmax "],
    [new RegExp(String.raw`[d∂]\s*${loss}\s*/\s*\(?[d∂]\s*([A-Za-z]\w*)\)?`, "g"), " d$1 "],
    [/∂\s*(?=[A-Za-z])/g, "d"],
    [/∇\s*_?\s*([A-Za-z]\w*)\s*(?:L\b|loss\b)?/g, " d$1 "],
    [new RegExp(String.raw`\b(${letter})\.grad\b`, "g"), " d$1 "],
    [/\bd (?=\p{Ll}{4})/gu, " derivative "],
    [/([a-z])([A-Z][a-z])/g, "$1 $2"],
    [/[’']s\b/g, ""],
  ];
  // "The gradient of Q" is dQ; where the book says so, it stays found by its words too.
  const gradient = [
    String.raw`\b${gradients}(?:[ _]+(?:of|for|in|to|the|loss|with|respect|wrt|w\.r\.t\.?))*[ _]+(${letter})(?!\w|['’])`,
    String.raw`(?<![\w'’])(${letter})(?:'s)?[ _]${gradients}\b`,
  ].map((pattern) => new RegExp(pattern, "gi"));
  const lowered = /(\p{L})(?=[\u2080-\u209c\u1d62-\u1d6a])/gu;
  const spelled = same.flatMap(([first, ...others]) => others.map((other) => [` ${plain(other)} `, ` ${first} `]))
    .sort(([a], [b]) => b.length - a.length);
  const silent = new Set(idle);

  function plain(text, typed) {
    let line = text.replace(lowered, "$1_").normalize("NFKD").replace(/\p{M}/gu, "");
    for (const [pattern, by] of latex) line = line.replace(pattern, by);
    for (const [pattern, by] of written) line = line.replace(pattern, by);
    for (const pattern of gradient) line = line.replace(pattern, typed ? " d$1 " : " d$1 $& ");
    return (line.toLowerCase().match(/[\p{L}\p{N}_∞]+/gu) ?? []).flatMap(parts).join(" ");
  }

  // W_K is wk, dW_K dwk; d_k, a width, is not dK. Other names are their words: nan_to_num.
  function parts(word) {
    if (/^[dn]_[a-z]+$/.test(word)) return [word];
    if (/^d?[a-z]_[a-z]{1,3}\d?t?$/.test(word)) return [word.replace("_", "")];
    return word.split("_").filter(Boolean);
  }

  const stem = (word) => (/^[a-z]{4,}$/.test(word) ? stemmer.stemWord(word) : word);

  return (text, typed = false) => {
    let line = ` ${plain(text, typed)} `;
    for (const [other, first] of spelled) line = line.replaceAll(other, first);
    const words = line.trim().split(" ").filter(Boolean);
    const heard = words.filter((word) => !silent.has(word));
    return (heard.length ? heard : words).map(stem);
  };
}
if (typeof module !== "undefined") module.exports = makeTerms;
