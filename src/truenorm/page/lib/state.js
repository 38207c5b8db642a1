/*
All state of the page stands in the address, behind the #, so that a link reproduces the view:

    truenorm.html#part=table&norm=layer&x=7,5,4;2,3,4

Only what differs from its default is written. An address may hold anything: what cannot be read is left out, keeps its
default, and is said in words (`complaints`). Nothing here touches the window; main.js connects the two.

    state.field("norm", choice("batch", "layer"), "batch");    // name, codec, default; once for each name
    state.get("norm");
    state.set({ norm: "layer", eps: 0 });                      // several at once: watchers run once, soon after
    state.watch(["norm", "eps"], draw);                        // runs draw now, and after each change of one of them
    state.fit("weight", () => "weight has ...");               // what an address with it cannot mean, or ""

A value is replaced, never changed in place: `set` compares by identity. What is too large throws (limits.js).

A part of the page gets `state.part(name)`: the same, but its watchers run only while the part is shown, and catch up
when it is. Names: the table that all parts share has plain names (problem.js); what belongs to one part begins with the
part's name and a dot, as in "padding.length".

Codecs turn a value into text that may stand in an address and back. `encode` takes every value; `decode` throws where
the text makes no sense, `check` where a value is too large.
*/
import { MOST_ADDRESS, TooLarge, attempt, checkLetters, checkSize, checkTable, checkWritten } from "#lib/limits.js";
import { encodeText, shortened } from "#lib/text.js";

const AT_ONCE = 12; // with one in 350 ms, fewer than the 100 in 30 s that the strictest browser allows

/**
 * `write` is given the new fragment, "" or "#...": at once, so that nothing is lost when somebody leaves right away;
 * after many in a row, one in `delay` milliseconds. `fail` is given what a watcher throws; the others run all the same.
 * @type {(options?: { hash?: string; write?: (fragment: string) => void; fail?: (error: unknown) => void; delay?:
 *     number }) => State}
 */
export function createState({ hash = "", write = () => {}, fail = rethrow, delay = 350 } = {}) {
    /**
     * @type {Map<string, { codec: Codec<any>; initial: any; value: any; text: string; encoded: any; unsaid: string }>}
     */
    const fields = new Map();
    /** @type {{ names: readonly string[]; run: () => void }[]} */
    const watchers = [];
    /** @type {[name: string, say: () => string][]} */
    const fits = [];
    /** @type {Set<string>} */
    const changed = new Set();
    /** @type {Map<string, string>} */
    let nonsense = new Map();
    /** @type {string[]} */
    let refused = []; // sentences about what is too large
    let address = readAddress(hash);
    let written = hash;
    let recent = 0; // writings, but for one in each delay
    let waiting = false; // to be written

    /** @type {(text: string) => Map<string, string>} */
    function readAddress(text) {
        const isShort = attempt(
            () => checkLetters("An address", MOST_ADDRESS, text.length),
            (reason) => refused.push(`The address was ignored. ${reason}`),
        );
        const words = isShort ? parseFragment(text) : [];
        const found = new Map(words);
        const twice = new Set(words.filter(([name, one]) => found.get(name) !== one).map(([name]) => name));
        for (const name of [...twice].slice(0, 5)) {
            refused.push(`${shortened(name, 41)} stands in the address more than once: the last one counts.`);
        }
        return found;
    }

    /** @type {(name: string) => any} */
    function decoded(name) {
        const { codec, initial } = fields.get(name);
        if (!address.has(name)) return initial;
        try {
            return codec.decode(address.get(name));
        } catch (error) {
            if (error instanceof TooLarge) refused.push(`Ignored in the address: ${name}. ${error.message}`);
            else nonsense.set(name, address.get(name));
            return initial;
        }
    }

    /** @type {(name: string, codec: Codec<any>, initial: any) => void} */
    function field(name, codec, initial) {
        if (fields.has(name)) throw new Error(`state: one field of each name, got ${name} twice.`);
        const text = codec.encode(initial);
        fields.set(name, { codec, initial, value: initial, text, encoded: initial, unsaid: text });
        fields.get(name).value = decoded(name);
    }

    /**
     * What does not fit: a sentence, or "", about a field that the address holds.
     * @type {(name: string, say: () => string) => void}
     */
    function fit(name, say) {
        fits.push([name, say]);
    }

    /** @type {(name: string) => any} */
    function get(name) {
        if (!fields.has(name)) throw new Error(`state: a field that is defined, got ${name}.`);
        return fields.get(name).value;
    }

    /** @type {(values: Record<string, any>) => void} */
    function set(values) {
        for (const [name, value] of Object.entries(values)) {
            if (!Object.is(get(name), value)) fields.get(name).codec.check?.(value);
        }
        for (const [name, value] of Object.entries(values)) {
            if (Object.is(get(name), value)) continue;
            fields.get(name).value = value;
            waiting = true;
            note(name);
        }
    }

    /** @type {(name: string) => void} */
    function note(name) {
        if (changed.size === 0) queueMicrotask(notifyWatchers);
        changed.add(name);
    }

    function notifyWatchers() {
        const names = [...changed];
        changed.clear();
        if (recent < AT_ONCE) flush();
        for (const watcher of watchers) {
            if (!names.some((name) => watcher.names.includes(name))) continue;
            try {
                watcher.run();
            } catch (error) {
                fail(error);
            }
        }
    }

    /** @type {(names: readonly string[], run: () => void) => void} */
    function watch(names, run) {
        watchers.push({ names, run });
        run();
    }

    /** The fragment that reproduces the view. */
    function fragment() {
        /** @type {string[]} */
        const words = [];
        for (const [name, one] of fields) {
            if (one.encoded !== one.value) one.text = one.codec.encode(one.value);
            one.encoded = one.value;
            if (one.text !== one.unsaid) words.push(`${name}=${one.text}`);
        }
        return words.length ? `#${words.join("&")}` : "";
    }

    /** Write the address now, if there is something to write. */
    function flush() {
        if (!waiting) return;
        waiting = false;
        const text = fragment();
        if (text === written) return;
        try {
            write(text);
            written = text;
        } catch {
            waiting = true; // the browser takes no more for now
        }
        recent += 1;
        if (recent === 1) setTimeout(forgetOne, delay);
    }

    function forgetOne() {
        recent -= 1;
        if (recent) setTimeout(forgetOne, delay);
        flush();
    }

    /**
     * Take over an address that somebody has typed, or come back to.
     * @type {(newHash: string) => void}
     */
    function apply(newHash) {
        waiting = false; // what was not written belongs to the address that was left
        written = newHash;
        nonsense = new Map();
        refused = [];
        address = readAddress(newHash);
        for (const [name, one] of fields) {
            const value = decoded(name);
            if (one.codec.encode(value) === one.codec.encode(one.value)) continue;
            one.value = value;
            note(name);
        }
    }

    /** What the address holds and the page cannot use, as one line; "" if there is nothing. Ask when all is defined. */
    function complaints() {
        const unknown = [...address].filter(([name]) => !fields.has(name));
        const words = [...nonsense, ...unknown].map(([name, text]) => (text ? `${name}=${text}` : name));
        const shown = words.slice(0, 5).map((word) => shortened(word, 41));
        if (words.length > shown.length) shown.push("…");
        const unread = words.length ? [`Ignored in the address, as it cannot be read: ${shown.join(", ")}.`] : [];
        const unfit = fits.filter(([name]) => address.has(name) && !nonsense.has(name)).map(([, say]) => say());
        return [...unread, ...refused, ...unfit.filter(Boolean)].join(" ");
    }

    /**
     * The state as a part of the page sees it: its watchers wait while it is not shown.
     * @type {(name: string) => State}
     */
    function part(name) {
        /** @type {(names: readonly string[], run: () => void) => void} */
        function watchWhileShown(names, run) {
            let stale = true;
            const catchUp = () => {
                if (!stale || get("part") !== name) return;
                stale = false;
                run();
            };
            watchers.push({ names, run: () => { stale = true; catchUp(); } });
            watch(["part"], catchUp);
        }
        return { ...state, watch: watchWhileShown };
    }

    /** @type {State} */
    const state = { field, fit, get, set, watch, fragment, flush, apply, complaints, part };
    return state;
}

/**
 * One of these words.
 * @type {(...words: string[]) => Codec<string>}
 */
export function choice(...words) {
    return {
        encode: encodeText,
        decode: (text) => sensible(words.includes(decodeURIComponent(text)), decodeURIComponent(text)),
    };
}

/**
 * A number between these, both included.
 * @type {(least: number, most: number) => Codec<number>}
 */
export function numberBetween(least, most) {
    return {
        encode: String,
        decode: (text) => {
            const plain = decodeURIComponent(text);
            const value = Number(plain) + 0; // never -0
            return sensible(/^[\d.e+-]+$/i.test(plain) && value >= least && value <= most, value);
        },
    };
}

/**
 * A whole number between these, both included.
 * @type {(least: number, most: number) => Codec<number>}
 */
export function wholeBetween(least, most) {
    const { encode, decode } = numberBetween(least, most);
    return { encode, decode: (text) => sensible(Number.isInteger(decode(text)), decode(text)) };
}

/**
 * A row of texts, `a,b,c`: whatever was typed into cells, number or not. An empty text is written `_`.
 * @type {Codec<string[]>}
 */
export const textRow = {
    encode: (row) => row.map((text) => (text === "" ? "_" : text === "_" ? "%5F" : encodeText(text))).join(","),
    decode: (text) => {
        checkWritten(text.length);
        const row = text === "" ? [] : text.split(",").map((one) => (one === "_" ? "" : decodeURIComponent(one)));
        checkTable([row]);
        return row;
    },
    check: (row) => checkTable([row]),
};

/**
 * Rows of texts, all equally long: `a,b;c,d`.
 * @type {Codec<string[][]>}
 */
export const textTable = {
    encode: (rows) => rows.map(textRow.encode).join(";"),
    decode: (text) => {
        checkWritten(text.length);
        const texts = text === "" ? [] : text.split(";");
        checkSize(texts.length, texts[0]?.split(",").length ?? 0);
        const rows = texts.map(textRow.decode);
        sensible(rows.every((row) => row.length === rows[0].length), rows);
        checkTable(rows);
        return rows;
    },
    check: checkTable,
};

/** @type {(error: unknown) => void} */
function rethrow(error) {
    throw error;
}

/** @type {<Value>(holds: boolean, value: Value) => Value} */
function sensible(holds, value) {
    if (!holds) throw new RangeError("state: text that makes sense.");
    return value;
}

/** @type {(hash: string) => [name: string, text: string][]} */
function parseFragment(hash) {
    return hash.replace(/^#/, "").split("&").filter((word) => word !== "").map((word) => {
        const [name, ...rest] = word.split("=");
        return [name, rest.join("=")];
    });
}
