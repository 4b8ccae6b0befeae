// Tests the inspector in a real browser: see ../browser.sh.
import assert from "node:assert/strict";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";
import { Agent } from "./agent.mjs";
import { reading } from "./reading.mjs";
import { texts } from "./texts.mjs";
import { formTests } from "./forms.mjs";

const [, , binary, serving, screenshots] = process.argv;
const { serving: url, inspector } = JSON.parse(fs.readFileSync(serving, "utf8").split("\n")[0]);
const base = inspector.replace(/\/$/, "");
const axe = fs.readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const agent = new Agent(binary, url);
const SIZES = [
  { name: "desk", viewport: { width: 1280, height: 900 }, colorScheme: "light" },
  { name: "phone", viewport: { width: 380, height: 800 }, colorScheme: "dark" },
];
// Timeout of each wait of a page, in milliseconds: a longer wait means that something hangs.
const PATIENCE = 20_000;

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM || "/usr/bin/chromium",
  args: ["--no-sandbox"],
});

// Opens a page that collects console errors and warnings, exceptions and failed requests.
async function opened(options = {}) {
  const context = await browser.newContext({ ...SIZES[0], ...options, reducedMotion: "reduce" });
  context.setDefaultTimeout(PATIENCE);
  const page = await context.newPage();
  page.faults = [];
  page.on("console", (said) => {
    if (["error", "warning"].includes(said.type())) page.faults.push(said.text());
  });
  page.on("pageerror", (error) => page.faults.push(String(error)));
  page.on("requestfailed", (request) => {
    const why = request.failure()?.errorText ?? "";
    if (why !== "net::ERR_ABORTED") page.faults.push(`${request.url()}: ${why}`);
  });
  page.done = async () => {
    assert.deepEqual(page.faults, [], page.url());
    await context.close();
  };
  return page;
}

async function go(page, address) {
  const answer = await page.goto(base + address, { waitUntil: "load" });
  assert.equal(answer.status(), 200, address);
  assert.ok((await answer.body()).length <= 300 << 10, `${address} is too large`);
}

async function checkWidth(page, what) {
  const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(over <= 0, `${what} is ${over} px wider than its screen`);
}

async function checkForEveryReader(page, what) {
  await page.evaluate(axe);
  const found = await page.evaluate(async () => {
    const { violations } = await window.axe.run(document, { resultTypes: ["violations"] });
    const grave = violations.filter(({ impact }) => ["serious", "critical"].includes(impact));
    return grave.map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map((node) => node.html).join(" | ")}`);
  });
  assert.deepEqual(found, [], what);
}

const tests = [];
const test = (story, run) => tests.push([story, run]);
const long = (all) => all.reduce((one, other) => (other.head > one.head ? other : one));
const conversation = long(agent.list()).conversation;
const own = `/c/${conversation}`;

// A small conversation for the tests, which add branches, decisions and hostile content.
const made = agent.run("append", "new", "message", "user", "Please look after the build").trim().split("\n").pop();
const small = made.match(/[0-9a-f-]{36}/)[0];
agent.run("fork", conversation, "--at", "40", "--name", "another way");
agent.run("append", conversation, "-b", "another way", "message", "user", "Do it in another way");

const PAGES = [
  ["conversations", "/"],
  ["tree", `${own}/branches`],
  ["transcript", own],
  ["event", `${own}/e/2`],
  ["tools", "/tools"],
  ["calls", `${own}/tools`],
  ["tokens", "/usage"],
  ["tokens of a conversation", `${own}/usage`],
  ["search", "/search?q=error"],
  ["request", `${own}/request?provider=anthropic&budget=8000`],
  ["requests", `${own}/request?provider=anthropic&b_provider=anthropic&b_budget=8000`],
  ["diff", `${own}/diff?a=main&b=another+way`],
  ["approvals", "/approvals"],
  ["store", "/store"],
];
const PICTURES = ["tree", "transcript", "search", "request"];

test("every page is accessible and opens without errors on a desktop and on a phone", async () => {
  const faults = [];
  for (const size of SIZES) {
    for (const [name, address] of PAGES) {
      const page = await opened(size);
      const what = `${name} on a ${size.name}`;
      try {
        await go(page, address);
        assert.ok(await page.locator("main h1").count(), `${what} has no heading`);
        if (screenshots && PICTURES.includes(name)) {
          await page.screenshot({ path: path.join(screenshots, `${name}-${size.name}.png`) });
        }
        await checkWidth(page, what);
        await checkForEveryReader(page, what);
        await page.done();
      } catch (error) {
        faults.push(`${what}: ${error.message}`);
      }
    }
  }
  assert.equal(faults.length, 0, faults.join("\n"));
});

test("every page shows its content without JavaScript", async () => {
  for (const [name, address] of PAGES) {
    const page = await opened({ javaScriptEnabled: false });
    await go(page, address);
    const text = await page.locator("main").innerText();
    assert.ok(text.length > 60, `${name}: ${text}`);
    await page.done();
  }
});

test("clicks fork a branch at an event and compare it", async () => {
  const page = await opened();
  await go(page, `${own}/e/30`);
  await page.getByRole("link", { name: "fork here" }).click();
  await page.getByLabel("Name of the new branch").fill("clicked");
  await page.locator("#fork button").click();
  await page.waitForURL(/at=/);
  const row = page.getByRole("row", { name: /clicked/ });
  await row.waitFor();
  assert.match(await row.innerText(), /#30/);
  await row.getByLabel("B").check();
  await page.getByRole("button", { name: "Compare A with B" }).click();
  await page.waitForURL(/diff/);
  assert.match(await page.locator("main").innerText(), /share everything up to #30/);
  assert.ok(agent.run("branch", "ls", conversation).includes("clicked"));
  await page.done();
});

test("a decision reaches the waiting agent, and new calls keep a typed reason", async () => {
  const page = await opened();
  await go(page, "/approvals");
  await page.locator(".live[data-state=open]").waitFor();
  agent.run("append", small, "call", "--needs-approval", "w1", "bash", '{"command":"make <all>"}');
  const card = page.locator("article", { hasText: "make <all>" });
  await card.waitFor();
  const decided = agent.waitForDecision(small, "w1");
  await card.getByLabel(/Reason/).fill("it is half ty");
  agent.run("append", small, "call", "--needs-approval", "w2", "bash", '{"command":"ls"}');
  await page.locator("article", { hasText: '"ls"' }).waitFor();
  assert.equal(await card.getByLabel(/Reason/).inputValue(), "it is half ty");
  await checkForEveryReader(page, "approvals with calls");
  // The card of a call that was decided elsewhere must show that.
  agent.run("deny", small, "w2", "--reason", "no");
  await page.locator("article.gone").waitFor();
  await card.getByLabel(/Reason/).fill("only a build");
  await card.getByRole("button", { name: "Approve" }).click();
  await page.getByText("Approved: bash").waitFor();
  assert.equal(await decided, true);
  assert.ok(agent.run("log", small).includes("only a build"));
  await page.done();
});

test("plain forms decide a call and fork a branch without JavaScript", async () => {
  agent.run("append", small, "call", "--needs-approval", "w3", "bash", '{"command":"true"}');
  const page = await opened({ javaScriptEnabled: false });
  await go(page, "/approvals");
  await page.getByLabel(/Reason/).fill("not now");
  // Buttons are inactive for a second after a load, and without scripts a click is not retried.
  await new Promise((passed) => setTimeout(passed, 1_200));
  await page.getByRole("button", { name: "Deny" }).click();
  await page.getByText("Denied: bash").waitFor();
  await go(page, `/c/${small}/branches`);
  await page.getByLabel("Name of the new branch").fill("plain");
  await page.locator("#fork button").click();
  await page.getByRole("row", { name: /plain/ }).waitFor();
  await page.done();
});

test("new events appear on an open page", async () => {
  const page = await opened();
  await go(page, `/c/${small}?branch=main&end=1`);
  await page.locator(".live[data-state=open]").waitFor();
  for (const text of ["first of three", "second of three", "third of three"]) {
    agent.run("append", small, "-b", "main", "message", "user", text);
    await page.getByText(text).first().waitFor();
  }
  await page.done();
});

test("hostile recorded content is shown as text", async () => {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "hostile-"));
  const file = path.join(folder, "result.txt");
  const hostile =
    "<script>window.taken = 1</script><img src=x onerror='window.taken = 2'>\n" +
    "name: \u202egpj.exe\u202c and a NUL:\u0000 and \u001b[2J\n" +
    "<>&\"".repeat(5 << 18) +
    "\nthe last line\n";
  fs.writeFileSync(file, hostile);
  agent.run("append", small, "-b", "main", "call", "h1", "<b>fetch</b>", '{"url":"</code><script>window.taken=3</script>"}');
  agent.run("append", small, "-b", "main", "result", "h1", `@${file}`);
  fs.rmSync(folder, { recursive: true });
  const page = await opened();
  for (const address of [
    `/c/${small}?branch=main&end=1`,
    `/c/${small}/tools?branch=main`,
    `/c/${small}/call/h1?branch=main`,
    `/c/${small}/request?branch=main&provider=openai-chat&budget=4000`,
    `/c/${small}/diff?a=main&b=plain`,
  ]) {
    await go(page, address);
    assert.equal(await page.evaluate(() => window.taken), undefined, address);
    const text = await page.locator("main").innerText();
    assert.ok(!/[\u202e\u0000\u001b]/.test(text), `${address} has what is not to be seen`);
    await checkWidth(page, address);
  }
  await go(page, `/c/${small}/call/h1?branch=main`);
  const result = await page.locator("#result").innerText();
  assert.ok(result.includes("<script>window.taken = 1</script>") && result.includes("U+202E"), result.slice(0, 400));
  await page.getByRole("link", { name: /Continue/ }).first().click();
  assert.match(await page.locator("#result .range").innerText(), /bytes [1-9]/);
  await page.getByRole("link", { name: "To the end" }).first().click();
  assert.ok((await page.locator("#result").innerText()).includes("the last line"));
  await page.done();
});

test("the keyboard alone can select, open and search", async () => {
  const page = await opened();
  await go(page, `${own}/tools`);
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.className), "skip");
  await page.keyboard.press("j");
  await page.keyboard.press("j");
  assert.equal(await page.locator("[data-item].at").count(), 1);
  await page.keyboard.press("o");
  await page.waitForURL(/\/call\//);
  await page.keyboard.press("?");
  assert.ok(await page.locator("dialog[open]").count());
  await page.keyboard.press("Escape");
  await page.keyboard.press("/");
  assert.equal(await page.evaluate(() => document.activeElement.name), "q");
  await page.done();
});

const browsed = { test, opened, go, checkWidth, checkForEveryReader, agent, own };
reading(browsed);
texts(browsed);
formTests({ test, opened, go, agent, binary, axe, small, own, SIZES });

let failed = 0;
const only = process.env.ONLY ?? "";
for (const [story, run] of tests.filter(([story]) => story.includes(only))) {
  try {
    await run();
    console.log(`ok    ${story}`);
  } catch (error) {
    failed += 1;
    console.log(`FAIL  ${story}\n${error.stack}`);
  }
}
await browser.close();
process.exit(failed === 0 ? 0 : 1);
