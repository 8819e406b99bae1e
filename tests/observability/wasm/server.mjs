// TimescaleDB in WASM behind a socket: `node server.mjs PORT`. In memory, gone with the process.
import { PGlite } from "@electric-sql/pglite";
import { PGLiteSocketServer } from "@electric-sql/pglite-socket";
import { timescaledb } from "@electric-sql/pglite/timescaledb";

const db = await PGlite.create({ extensions: { timescaledb } });
const server = new PGLiteSocketServer({ db, host: "127.0.0.1", port: Number(process.argv[2]) });
await server.start();
console.log("ready");
