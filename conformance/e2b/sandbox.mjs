// What all of the tests share.
import assert from 'node:assert/strict'
import { after, before, test as nodeTest } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { Sandbox } from 'e2b'

// A test that hangs is ended after a minute; node's own flag for it would count
// for the whole file. Some may take longer than others.
export const test = (name, fn, timeout = 60_000) => nodeTest(name, { timeout }, fn)

// A sandbox for all the tests of a file. Its field box is set once they run.
export function sharedSandbox(opts) {
  const shared = { box: undefined }
  before(async () => {
    shared.box = await Sandbox.create(opts)
  })
  after(async () => {
    await shared.box?.kill()
  })
  return shared
}

// until waits for probe to return something true, and returns that. What it waits
// for is a text, or a function that tells how it stands at the end.
export async function until(what, probe, ms = 15_000) {
  const end = Date.now() + ms
  for (;;) {
    const got = await probe()
    if (got) return got
    if (Date.now() > end) assert.fail(`waited ${ms} ms in vain: ${typeof what === 'function' ? what() : what}`)
    await sleep(50)
  }
}

// within returns what a promise gives, but not later than after ms.
export async function within(what, promise, ms = 15_000) {
  const stop = new AbortController()
  const late = sleep(ms, undefined, { signal: stop.signal }).then(() => assert.fail(`waited ${ms} ms in vain: ${what}`))
  try {
    return await Promise.race([promise, late])
  } finally {
    stop.abort()
  }
}

// failure returns the error that a promise ends with, which must be of a class.
export async function failure(promise, kind, message = undefined) {
  let error
  await assert.rejects(promise, (e) => {
    error = e
    return true
  })
  assert.equal(error?.constructor?.name, kind.name, `${error?.stack}`)
  assert.ok(error instanceof kind)
  if (message !== undefined) assert.match(error.message, message)
  return error
}

// isAlive says whether a process whose command line has a word runs inside.
export async function isAlive(box, word) {
  const found = await box.commands.run(`ps -eo args | grep -F -- "$WORD" | grep -v grep || true`, { envs: { WORD: word } })
  return found.stdout !== ''
}

export { sleep }
