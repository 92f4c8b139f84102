// In place of the server's engine.

export { models, run } from "./local.js";
