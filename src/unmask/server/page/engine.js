// The engine of this page. The static page has another one in its place, with the same two functions:
//   models(tell)          a promise of [{ id, length, process, plans, parameters }]; until they can write,
//                         tell(line) is called with what they wait for, then with ""
//   run(request, signal)  an async generator of messages: start, step, ..., done or error

export { models, run } from "./remote.js";
