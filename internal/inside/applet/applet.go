// Package applet contains small programs of the guest's executable that commands start as sandpit.GuestProgram. Every
// sandbox has them, whatever its image contains. Each reads one request as JSON from its input, writes one answer as
// JSON to its output, and has only the rights of the user that runs it. So callers need no shell, and nothing depends
// on tools of the image.
//
// An answer comes out of a sandbox: it is as trustworthy as any other output.
package applet

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/sandpit-dev/sandpit"
)

// maxRequest bounds a request, in bytes.
const maxRequest = 16 << 20

// Failure is why an applet did nothing, or only a part. It is then the only field of the answer, and the exit status
// is 1.
type Failure struct {
	Code    sandpit.Code `json:"code"`
	Message string       `json:"message"`
}

// answer is the output of all applets.
type answer struct {
	Error *Failure `json:"error,omitempty"`
	Value any      `json:"value,omitempty"`
}

// Main runs the applet with a name on the streams of this process, and returns its exit status. Known is false if
// there is no such applet.
func Main(name string) (status int, known bool) {
	run, known := listApplets()[name]
	if !known && name != Dial {
		return 0, false
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if name == Dial {
		return dialMain(ctx, os.Args[2:], os.Stdin, os.Stdout), true
	}
	return runApplet(ctx, run, os.Stdin, os.Stdout), true
}

type applet func(ctx context.Context, request []byte) (any, error)

func listApplets() map[string]applet {
	return map[string]applet{
		Processes: newApplet(listProcesses),
		Search:    newApplet(searchFiles),
		Fetch:     newApplet(fetchURL),
		Identity:  newApplet(identifyUser),
		Sessions:  newApplet(manageSessions),
		Picture:   newApplet(showPicture),
	}
}

// newApplet returns an applet for requests of a type.
func newApplet[Request, Answer any](f func(context.Context, Request) (Answer, error)) applet {
	return func(ctx context.Context, data []byte) (any, error) {
		var r Request
		if err := json.Unmarshal(data, &r); err != nil {
			return nil, sandpit.Errorf(sandpit.Invalid, "request: %w", err)
		}
		return f(ctx, r)
	}
}

func runApplet(ctx context.Context, run applet, in io.Reader, out io.Writer) int {
	var a answer
	data, err := io.ReadAll(io.LimitReader(in, maxRequest+1))
	switch {
	case err != nil:
	case len(data) > maxRequest:
		err = sandpit.Errorf(sandpit.Invalid, "the request is larger than %d bytes", maxRequest)
	default:
		a.Value, err = run(ctx, data)
	}
	if err != nil {
		a.Error = &Failure{Code: sandpit.CodeOf(err), Message: err.Error()}
	}
	if err := json.NewEncoder(out).Encode(a); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "write the answer:", err) // no other way to report it
		return 1
	}
	if a.Error != nil {
		return 1
	}
	return 0
}
