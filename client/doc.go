// Package client talks to a sandpit server. A Client has its methods in groups by resource, such
// as Sandboxes, Snapshots and Templates. Programs, files and terminals in a sandbox are reached
// through a sandpit.Guest, the same interface that programs use which create sandboxes without a
// server.
//
//	c, err := client.FromEnv()
//	...
//	err = c.WithSandbox(ctx, client.CreateRequest{}, func(ctx context.Context, s *client.Sandbox) error {
//		res, err := s.Run(ctx, "echo hello")
//		...
//	})
//
// Errors carry a sandpit.Code: errors.Is(err, sandpit.NotFound) works, and sandpit.HintOf returns
// what to do, if that is known. Unavailable means that the server could not be reached, or that
// the connection broke during the call.
//
// If the server cannot be reached for a moment, requests are sent again that do nothing twice:
// those that only read or replace something, and the creation of a sandbox, which has an
// idempotency key. Other requests are sent once.
package client
