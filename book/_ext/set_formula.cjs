// One formula a line comes in as JSON, its HTML or its error a line goes out. Run by formulas.py.
const katex = require(process.argv[2]);

require("readline")
  .createInterface({ input: process.stdin })
  .on("line", (line) => {
    let answer;
    try {
      answer = { html: katex.renderToString(...JSON.parse(line)) };
    } catch (error) {
      answer = { error: error.message };
    }
    process.stdout.write(JSON.stringify(answer) + "\n");
  });
