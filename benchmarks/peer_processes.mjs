// The peer in several processes on one port, by the cluster of Node, as an operator would run it on two
// cores. What starts this holds its standard input open: when that ends, however it ends, so does all this.
import cluster from "node:cluster";

const PROCESSES = Number(process.env.PEER_PROCESSES);

if (cluster.isPrimary && process.argv[2] === "start") {
  let listening = 0;
  cluster.on("listening", () => {
    listening += 1;
    if (listening === PROCESSES) console.log("peer is listening");
  });
  cluster.on("exit", () => process.exit(1));
  process.stdin.on("end", () => process.exit(0)).resume();
  for (let made = 0; made < PROCESSES; made += 1) cluster.fork();
} else {
  await import("@directus/api/cli/run.js"); // not its own entry, which asks the registry for news
}
