// What all of the tests share. SDK names the package under test.
import assert from 'node:assert/strict'
import { after, before, test as nodeTest } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'

export const sdk = await import(process.env.SDK ?? '@daytonaio/sdk')
export const daytona = new sdk.Daytona()

const created = []

// Connections for events would keep node running.
after(async () => {
  for (const sandbox of created) await sandbox.delete().catch(() => {}) // most are gone
  await daytona[Symbol.asyncDispose]()
})

// A test that hangs ends after a minute; node's own flag would apply to the whole file.
export const test = (name, fn, timeout = 60_000) => nodeTest(name, { timeout }, fn)

// create returns a new sandbox, which is deleted after the tests of the file.
export async function create(params = {}) {
  const sandbox = await daytona.create(params)
  created.push(sandbox)
  return sandbox
}

// sharedSandbox returns an object whose field box is a sandbox while the tests of a file run, which
// begin when prepare has ended.
export function sharedSandbox(params, prepare = async () => {}) {
  const shared = { box: undefined }
  before(async () => {
    shared.box = await create(params)
    await prepare()
  })
  return shared
}

// until waits for probe to return something true, and returns that.
export async function until(what, probe, ms = 15_000) {
  const end = Date.now() + ms
  for (;;) {
    const got = await probe()
    if (got) return got
    if (Date.now() > end) assert.fail(`waited ${ms} ms in vain: ${typeof what === 'function' ? what() : what}`)
    await sleep(50)
  }
}

// within returns what a promise resolves to, but not later than after ms.
export async function within(what, promise, ms = 15_000) {
  const stop = new AbortController()
  const late = sleep(ms, undefined, { signal: stop.signal }).then(() => assert.fail(`waited ${ms} ms in vain: ${what}`))
  late.catch(() => {})
  try {
    return await Promise.race([promise, late])
  } finally {
    stop.abort()
  }
}

// failure returns the error that a promise rejects with, which must have the class of that name
// and, unless it is undefined, the status.
export async function failure(promise, kind, status, message) {
  let error
  await assert.rejects(promise, (e) => {
    error = e
    return true
  })
  assert.equal(error?.constructor?.name, kind, `${error?.stack}`)
  assert.ok(error instanceof sdk.DaytonaError, `${error?.stack}`)
  if (status !== undefined) assert.equal(error.statusCode, status, `${error?.stack}`)
  if (message !== undefined) assert.match(error.message, message)
  return error
}

// unique returns a name that no other test uses.
let names = 0
export const unique = (prefix) => `${prefix}-${process.pid}-${Date.now().toString(36)}-${names++}`

// call sends a request to the control API as a program without an SDK does.
export const call = (method, path, body, headers = {}) =>
  fetch(process.env.DAYTONA_API_URL + path, {
    method,
    headers: { Authorization: `Bearer ${process.env.DAYTONA_API_KEY}`, 'Content-Type': 'application/json', ...headers },
    body: body === undefined ? undefined : JSON.stringify(body),
  })

export { sleep }
