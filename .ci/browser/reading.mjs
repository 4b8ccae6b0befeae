// Tests reading in a real browser: links to results, the keyboard, following new events, and the
// transcript as of a revision.
import assert from "node:assert/strict";

const PHONE = { viewport: { width: 380, height: 800 } };

// A conversation with calls whose results are longer than a screen.
function calls(agent) {
  const made = agent.run("append", "new", "message", "user", "Read the logs of the build").trim().split("\n").pop();
  const id = made.match(/[0-9a-f-]{36}/)[0];
  const text = Array.from({ length: 60 }, (_, line) => `line ${line + 1} of a log`).join("\n");
  for (let number = 1; number <= 6; number += 1) {
    agent.run("append", id, "call", `c${number}`, "bash", JSON.stringify({ command: `cat build-${number}.log` }));
    agent.run("append", id, "result", `c${number}`, `${text}\nthe end of ${number}`);
  }
  agent.run("append", id, "message", "assistant", "They are all fine");
  return `/c/${id}`;
}

const top = (page, selector) => page.evaluate((one) => {
  const bar = getComputedStyle(document.querySelector("header.top")).position === "sticky"
    ? document.querySelector("header.top").getBoundingClientRect().bottom : 0;
  return document.querySelector(one).getBoundingClientRect().top - bar;
}, selector);
const marked = (page) => page.locator("[data-item].at").getAttribute("id");

export function reading({ test, opened, go, checkWidth, checkForEveryReader, agent, own }) {
  const read = calls(agent);
  const id = read.slice(3);

  test("a link to a result unfolds it and shows it below the header", async () => {
    for (const options of [{}, { javaScriptEnabled: false }, PHONE]) {
      const page = await opened(options);
      await go(page, `${read}?branch=main&around=6#e6`);
      const result = page.locator("#e6");
      await result.waitFor();
      assert.match(await result.innerText(), /the end of 2/);
      const at = await top(page, "#e6");
      assert.ok(at >= 0 && at < 300, `${at} px below the bar`);
      if (options.javaScriptEnabled !== false) assert.equal(await marked(page), "e5");
      await page.done();
    }
    // A link unfolds a result that the reader has folded before.
    const page = await opened();
    await go(page, read);
    await page.locator("#r4 summary").click();
    await page.locator("#r4 summary").click();
    await page.goto(page.url() + "#e4");
    await page.locator("#e4").waitFor();
    await page.done();
  });

  test("j, k, g and G move through the pages of a conversation", async () => {
    const page = await opened();
    await go(page, own);
    const last = await page.locator("[data-item]").last().getAttribute("id");
    await page.evaluate((item) => document.getElementById(item).focus(), last);
    await page.evaluate((item) => {
      document.querySelector("[data-item].at")?.classList.remove("at");
      document.getElementById(item).classList.add("at");
    }, last);
    await page.keyboard.press("j");
    await page.waitForURL(/from=/);
    const first = await page.locator("[data-item]").first().getAttribute("id");
    assert.equal(await marked(page), first);
    await page.keyboard.press("k");
    await page.waitForURL(/before=/);
    assert.equal(await marked(page), await page.locator("[data-item]").last().getAttribute("id"));
    await page.keyboard.press("G");
    await page.waitForURL(/end=1/);
    assert.ok(await page.evaluate(() => scrollY + innerHeight >= document.body.scrollHeight - 4), "not at its end");
    assert.equal(await marked(page), await page.locator("[data-item]").last().getAttribute("id"));
    await page.keyboard.press("j");
    await page.keyboard.press("g");
    await page.waitForURL(/start=1/);
    assert.equal(await marked(page), "e1");
    await page.done();
  });

  test("o opens an item's own page, Enter unfolds all of it", async () => {
    const page = await opened();
    await go(page, read);
    for (let press = 0; press < 3; press += 1) await page.keyboard.press("j");
    assert.equal(await marked(page), "e3");
    await page.keyboard.press("Enter");
    assert.ok(await page.locator("#a3").getAttribute("open") !== null);
    await page.getByText("the end of 1").waitFor();
    await page.keyboard.press("Enter");
    assert.equal(await page.locator("#r4").getAttribute("open"), null);
    await page.keyboard.press("o");
    await page.waitForURL(/\/call\/c1/);
    await page.goBack();
    await page.keyboard.press("j");
    await page.done();
    const other = await opened();
    await go(other, read);
    await other.keyboard.press("j");
    await other.keyboard.press("o");
    await other.waitForURL(/\/e\/1/);
    await other.done();
  });

  test("the last page opens at its end and counts new events below the screen", async () => {
    for (const javaScriptEnabled of [true, false]) {
      const page = await opened({ javaScriptEnabled });
      await go(page, own);
      await page.getByRole("link", { name: "to the end" }).first().click();
      await page.waitForURL(/end=1/);
      const last = page.locator("[data-item]").last();
      await last.scrollIntoViewIfNeeded({ timeout: 2000 });
      const before = await page.evaluate(() => scrollY);
      assert.ok(before > 2000, `it opened at ${before} px`);
      await page.done();
    }
    const page = await opened();
    await go(page, `${read}?end=1`);
    await page.locator(".live[data-state=open]").waitFor();
    agent.run("append", id, "message", "user", "this one is followed");
    await page.getByText("this one is followed").first().waitFor();
    assert.ok(await page.evaluate(() => scrollY + innerHeight >= document.body.scrollHeight - 4), "it is not followed");
    await page.evaluate(() => { for (const fold of document.querySelectorAll(".result")) fold.open = true; scrollTo(0, 0); });
    const stood = await top(page, "#e3");
    for (const text of ["first below", "second below"]) {
      agent.run("append", id, "message", "user", text);
      await page.getByText(text, { exact: true }).first().waitFor({ state: "attached" });
    }
    await page.getByRole("button", { name: "2 new below" }).waitFor();
    assert.equal(await top(page, "#e3"), stood);
    await checkForEveryReader(page, "a transcript with something below");
    await page.getByRole("button", { name: "2 new below" }).click();
    await page.getByRole("button", { name: "2 new below" }).waitFor({ state: "hidden" });
    await page.done();
  });

  test("a transcript as of a revision opens at its end and keeps the slider", async () => {
    const page = await opened();
    await go(page, own);
    await page.locator("#at").focus();
    await page.keyboard.press("ArrowLeft");
    await page.waitForURL(/at=/);
    await page.locator("#at:focus").waitFor();
    const at = new URL(page.url()).searchParams.get("at");
    assert.ok(await page.locator("#at").isVisible());
    assert.ok(await page.evaluate(() => scrollY > 1000), "it opened at its beginning");
    assert.match(await page.locator(".pages .place").first().innerText(), new RegExp(`of ${Number(at).toLocaleString("en")}$`));
    await page.keyboard.press("ArrowLeft");
    await page.waitForURL(new RegExp(`at=${Number(at) - 1}`));
    await checkForEveryReader(page, "a moment");
    await page.done();
    const phone = await opened(PHONE);
    await go(phone, `${own}?at=300`);
    await checkWidth(phone, "a moment");
    await phone.done();
  });

  test("calls show their duration, and usual stop reasons are no warnings", async () => {
    const page = await opened();
    await go(page, own);
    assert.ok(await page.locator(".call header .number").count(), "no call says how long it took");
    assert.equal(await page.locator(".badge", { hasText: /tooluse/i }).count(), 0);
    await page.done();
  });
}
