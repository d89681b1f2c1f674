package interpreter

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// EnvironSocket is an abstract socket on which the guest tells everybody in its sandbox, as a JSON object, the
// environment that it gives to the programs it starts. A kernel that was started before a sandbox
// had its environment, in the sandbox that it is a copy of, learns it there.
const EnvironSocket = "@sandpit/environ"

const (
	maxEnviron  = 4 << 20 // bytes
	environTime = 5 * time.Second
)

// guestEnviron asks the guest. Where there is none, there is no environment.
func guestEnviron(ctx context.Context) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, environTime)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", EnvironSocket)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil, nil //nolint:nilnil // no environment is a good one
	}
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Unavailable, "ask for the environment: %w", err)
	}
	defer func() { _ = conn.Close() }() // only read from
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	var env map[string]string
	if err := json.NewDecoder(io.LimitReader(conn, maxEnviron)).Decode(&env); err != nil {
		return nil, sandpit.Errorf(sandpit.Unavailable, "ask for the environment: %w", err)
	}
	return env, checkEnv(env)
}
