// Snapshots of the engine, streamed while the view is looked at.

import { errorInStream, request, requestJson, ServerError } from "../base/api.js";
import { serverEvents } from "../base/events.js";

const AGAIN_MS = 2_000;

/** Calls `on.model(model)`, `on.snapshot(snapshot)` and `on.trouble(error)`, which returns whether to
 * try again. A snapshot comes when anything has changed. */
export class Feed {
  constructor(on) {
    this.on = on;
    this.control = null;
    this.timer = null;
  }

  start() {
    if (this.control) return;
    this.control = new AbortController();
    this.run(this.control.signal);
  }

  stop() {
    clearTimeout(this.timer);
    this.control?.abort();
    this.control = null;
  }

  async run(signal) {
    try {
      this.on.model(await requestJson("insight/model", { signal }));
      const { body } = await request("insight/stream", { signal });
      for await (const data of serverEvents(body)) {
        const snapshot = JSON.parse(data);
        if (snapshot.error) this.on.trouble(errorInStream(snapshot.error)); // the stream goes on
        else this.on.snapshot(snapshot);
      }
      throw new ServerError(0, "the server has ended the stream");
    } catch (error) {
      if (signal.aborted) return;
      this.control = null;
      // What is not there stays away, and a wrong key stays wrong.
      if (!this.on.trouble(error)) return;
      this.timer = setTimeout(() => this.start(), AGAIN_MS);
    }
  }
}
