/*
A module of the page in a thread of its own: moduleWorker("#training/worker.js").

Workers do not see the page's import map. But it holds the text of every module, so each name that a module imports is
replaced by the data: URL of that module, whose own imports are replaced in the same way. The worker inherits the page's
policy: it can load modules from data: URLs, and nothing else.
*/

/** @type {(name: string) => Worker} */
export function moduleWorker(name) {
    const { imports } = JSON.parse(document.querySelector("script[type=importmap]").textContent);
    return new Worker(standaloneUrl(name, imports), { type: "module" });
}

/**
 * A data: URL that holds a module and all that it imports.
 * @type {(name: string, imports: Record<string, string>) => string}
 */
export function standaloneUrl(name, imports) {
    const url = imports[name];
    if (url === undefined) throw new Error(`worker: a module of the page, got ${name}.`);
    const start = url.indexOf(",") + 1;
    const source = decodeURIComponent(url.slice(start)).replace(/^(import .*?|\} from )"(#[^"]+)";$/gm,
        (line, before, imported) => `${before}"${standaloneUrl(imported, imports)}";`);
    // Encoded: what a URL would lose, what would be taken for an encoded character, and what would end the string.
    return url.slice(0, start) + source.replace(/[%#"\\\n\r\t]/g, encodeURIComponent);
}
