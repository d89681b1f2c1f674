package guest

import (
	"context"
	"encoding/json"
	"net"
	"time"

	"github.com/sandpit-dev/sandpit/internal/inside/interpreter"
)

// environTime is how long a program may take to read the environment.
const environTime = time.Second

// shareEnviron serves the environment of started programs on a socket that programs in the sandbox can read, until
// stop is called. It reads nothing from them.
func (g *Guest) shareEnviron(ctx context.Context) (stop func(), err error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "unix", interpreter.EnvironSocket)
	if err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return // closed
			}
			_ = conn.SetDeadline(time.Now().Add(environTime)) // a slower reader gets nothing
			_ = json.NewEncoder(conn).Encode(g.currentSettings().forPrograms())
			_ = conn.Close()
		}
	}()
	return func() {
		_ = ln.Close()
		<-ended
	}, nil
}
