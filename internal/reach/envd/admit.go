package envd

import (
	"bytes"
	"fmt"
	"io"
	"net/http"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/reach/gen/process"
	"github.com/sandpit-dev/sandpit/internal/reach/gen/process/processconnect"
)

// admitCommand asks the observer to admit a command before the guest receives it. It refuses
// an unreadable request, which would otherwise bypass the observer.
func (o *observed) admitCommand(r *http.Request) error {
	to := o.observer.Load()
	if to == nil || to.Admit == nil || r.URL.Path != processconnect.ProcessStartProcedure {
		return nil
	}
	m, err := peekStart(r)
	if err != nil {
		return err
	}
	args := append([]string{m.GetProcess().GetCmd()}, m.GetProcess().GetArgs()...)
	if err := to.Admit(r.Context(), args, m.GetProcess().GetCwd()); err != nil {
		c := sandpit.CommandCall(sandpit.RunCommand, args)
		if m.GetPty() != nil {
			c.Action = sandpit.OpenTerminal
		}
		c.Err = sandpit.NotAdmitted(err)
		to.Called(r.Context(), c)
		return err
	}
	return nil
}

// peekStart parses the message of a request to start a command, and restores the body.
func peekStart(r *http.Request) (*process.StartRequest, error) {
	account := memory.AccountOf(r.Context())
	var text []byte
	if r.Body != nil {
		var err error
		text, err = io.ReadAll(io.LimitReader(memory.Metered(r.Body, account, 1), maxObserved+1))
		_ = r.Body.Close() // was only read
		if err != nil {
			return nil, fmt.Errorf("read the request: %w", err)
		}
	}
	var m process.StartRequest
	read := bodyRecord{account: account, header: r.Header, data: text}
	if len(text) > maxObserved || !read.parseMessage(&m) {
		return nil, sandpit.Errorf(sandpit.Invalid, "the request to start a command is unreadable, so the command screen cannot check it")
	}
	r.Body = io.NopCloser(bytes.NewReader(text))
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil }
	return &m, nil
}
