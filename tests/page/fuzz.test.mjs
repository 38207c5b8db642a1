// A short run of the fuzzer; the long one is in test_hostile.py. And what it, or somebody, has found.
import assert from "node:assert/strict";
import { test } from "node:test";

import { checkAddress, checkBlock, checkText, fuzz } from "./fuzz.mjs";

test("random addresses, pasted and typed texts do no harm", () => {
    const { counts } = fuzz({ seed: 1, cases: 120 });
    for (const kind of ["addresses read", "addresses partly read", "addresses refused", "blocks read", "texts read"]) {
        assert.ok(counts[kind] > 2, kind);
    }
    assert.deepEqual(fuzz({ seed: 2, cases: 8 }).counts, fuzz({ seed: 2, cases: 8 }).counts);
});

test("halves of characters, and characters that cannot be seen", () => {
    for (const text of ["\ud800", "\udc00", "7\ud83d", "\u0000", "\u202e1\u202c", "\u2028", "a\u200db", "1e999", "-0"]) {
        assert.equal(checkText(text), "read");
    }
    assert.equal(checkText("9".repeat(1000)), "refused");
});

test("texts that took minutes, or all memory, when they were pasted", () => {
    const started = process.cpuUsage();
    assert.equal(checkBlock(`1${" ".repeat(500_000)}2`), "read");
    assert.equal(checkBlock(`${"\n".repeat(500_000)}1\t2`), "read");
    assert.equal(checkBlock("1\t2\n".repeat(150_000)), "refused");
    assert.equal(checkBlock("1\t".repeat(10_000)), "refused");
    assert.equal(checkBlock(`${"1\n".repeat(20_000)}${"1\t".repeat(10_000)}`), "refused");
    assert.equal(checkBlock("9".repeat(2_000_000)), "refused");
    assert.equal(checkBlock(`${"]".repeat(100_000)}${" \t".repeat(100_000)}`), "refused");
    const { user, system } = process.cpuUsage(started);
    assert.ok(user + system < 5e6, `${(user + system) / 1e6} seconds`);
});

test("addresses that took seconds", () => {
    assert.equal(checkAddress(`#x=${"1,".repeat(9_999)}1`), "refused");
    assert.equal(checkAddress(`#x=${"1;".repeat(9_999)}1`), "refused");
    assert.equal(checkAddress(`#x=${"1".repeat(1_000_000)}`), "refused");
    assert.equal(checkAddress(`#${"a&".repeat(1_500_000)}`), "refused");
    assert.equal(checkAddress(`#weight=${"1,".repeat(9_999)}1`), "refused");
    assert.equal(checkAddress("#__proto__=1&constructor=2&x=__proto__"), "partly read");
});
