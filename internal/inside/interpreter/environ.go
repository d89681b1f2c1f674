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

// EnvironSocket is an abstract socket on which the guest sends programs in its sandbox, as a JSON object, the
// environment that it gives to programs. A kernel that was started before its sandbox was copied reads the copy's
// environment there.
const EnvironSocket = "@sandpit/environ"

const (
	maxEnviron  = 4 << 20 // bytes
	environTime = 5 * time.Second
)

// guestEnviron reads the environment from the guest. Without a guest there is no environment.
func guestEnviron(ctx context.Context) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, environTime)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", EnvironSocket)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil, nil //nolint:nilnil // no environment is valid
	}
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Unavailable, "ask for the environment: %w", err)
	}
	defer func() { _ = conn.Close() }() // it was only read
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	var env map[string]string
	if err := json.NewDecoder(io.LimitReader(conn, maxEnviron)).Decode(&env); err != nil {
		return nil, sandpit.Errorf(sandpit.Unavailable, "ask for the environment: %w", err)
	}
	return env, checkEnv(env)
}
