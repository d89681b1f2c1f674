// Package api is the edge of the server: who calls, whether they may, how much they
// may ask for, and how failures are told. What the calls are is the business of the
// packages below it.
package api
