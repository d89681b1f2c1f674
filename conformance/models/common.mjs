// What both tests need.
import assert from 'node:assert/strict'
import nodeTest from 'node:test'

export const key = process.env.MODELS_KEY
export const pixel = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=='

// address returns the URL of the server of a script, which each protocol has one of.
export const address = (protocol, script) => `${process.env.MODELS_SERVER}/${protocol}/${script}`

export const test = (name, run) => nodeTest(name, { timeout: 60_000 }, run)

// failure returns the error of a promise.
export async function failure(promise) {
  try {
    await promise
  } catch (error) {
    return error
  }
  assert.fail('no error')
}
