// Browsers start no worker for a page that was opened from disk. The search of the site needs one: here its script runs
// in an empty frame of the page instead, with the same messages.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(address) {
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.append(frame);
      const inside = frame.contentWindow;
      inside.postMessage = (data) => this.onmessage?.({ data: structuredClone(data) });
      this.frame = frame;
      this.ready = new Promise((done, failed) => {
        const script = inside.document.createElement("script");
        script.src = new URL(address, location);
        script.onload = done;
        script.onerror = failed;
        inside.document.head.append(script);
      });
    }

    postMessage(data) {
      this.ready.then(
        () => this.frame.contentWindow?.onmessage({ data: structuredClone(data) }),
        (error) => this.onerror?.(error),
      );
    }

    terminate() {
      this.frame.remove();
    }
  };
}
