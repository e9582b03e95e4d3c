// The search runs in a worker, which a page that is opened from a disk may not start: there, a hidden frame runs it.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc = "<!doctype html><title>search</title>";
      this.window = new Promise((ready, failed) => {
        this.frame.onload = () => {
          const inner = this.frame.contentWindow;
          inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          const script = inner.document.createElement("script");
          script.onload = () => ready(inner);
          script.onerror = failed;
          script.src = url;
          inner.document.body.append(script);
        };
      });
      document.body.append(this.frame);
    }
    postMessage(data) {
      this.window.then((inner) => inner.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
