// Package client talks to a sandpit server. Its verbs are those of the server's
// manager; what happens inside a sandbox is done through a sandpit.Guest, the same
// interface that programs use which make sandboxes themselves.
//
//	c, err := client.FromEnv()
//	...
//	err = c.WithSandbox(ctx, client.CreateRequest{}, func(ctx context.Context, s *client.Sandbox) error {
//		res, err := s.Run(ctx, "echo hello")
//		...
//	})
//
// Errors carry a sandpit.Code: errors.Is(err, sandpit.NotFound) works, and
// sandpit.HintOf tells what to do where that is known. Unavailable means that the
// server could not be reached, or that the connection broke in the middle.
//
// Requests that can be sent again without doing something twice are sent again when
// the server cannot be reached for a moment: those that only read, and the making of
// a sandbox, which has a key for that. Nothing else is.
package client
