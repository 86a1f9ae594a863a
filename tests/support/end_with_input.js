// Preloaded into servers on Node.js: they end when their standard input does, that is, with the tests.
process.stdin.resume();
process.stdin.on("end", () => process.exit());
