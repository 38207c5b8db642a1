"""Scripts that listen to live training in the page."""

# Into `asked`: until which steps each worker is to go, "start" for a new run.
LISTEN = """() => {
    globalThis.asked = new Map();
    const post = Worker.prototype.postMessage;
    Worker.prototype.postMessage = function (message) {
        asked.set(this, [...(asked.get(this) ?? []), message.until ?? "start"]);
        post.call(this, message);
    };
}"""

# Into `seen`: the status and the legend after each change.
WATCH = """() => {
    globalThis.seen = [];
    const changes = { childList: true, characterData: true, subtree: true };
    new MutationObserver(() => seen.push([
        document.querySelector(".live .status").textContent, document.querySelector(".live .legend").textContent,
    ])).observe(document.querySelector(".live"), changes);
}"""
