package workspace

import (
	"bytes"
	"context"
	"encoding/json"
	"path"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/applet"
)

const (
	// locateTime bounds one attempt to find the directory where commands start.
	locateTime = 20 * time.Second
	// maxPlace bounds the response of the guest's program, and maxDir a directory in it, in
	// bytes.
	maxPlace = 64 << 10
	maxDir   = 4096
)

// Place is where the programs of a user start, and where the user may create files.
type Place struct {
	// Dir is the working directory: the one of the sandbox's Spec, else the image's, else
	// sandpit.DefaultWorkDir; the user's home if the user cannot work there, else "/".
	Dir string
	// State is a directory in which programs of the user can create files: Dir if possible,
	// else the home, else /tmp.
	State string
}

// Locate asks the guest where programs of a user start. All default working directories are
// decided here, because a Spec may leave them to the image. Locate creates a requested
// directory if it is missing; "" and sandpit.HomeDir request none.
//
// Invalid: the requested directory is not absolute, or is a file. Otherwise errors as
// sandpit.Processes.Start.
func Locate(ctx context.Context, g sandpit.Guest, user, requested string) (Place, error) {
	if requested == "" || requested == sandpit.HomeDir {
		return locateDefault(ctx, g, user)
	}
	if !path.IsAbs(requested) {
		return Place{}, sandpit.Errorf(sandpit.Invalid, "workspace: directory %q is not absolute", requested)
	}
	switch err := g.MakeDir(ctx, user, requested); sandpit.CodeOf(err) {
	case "", sandpit.AlreadyExists:
	case sandpit.PermissionDenied: // file calls are confined, but programs are not: they may use what exists
	default:
		return Place{}, err
	}
	p, err := locateIn(ctx, g, user, requested)
	if err == nil {
		p.Dir = path.Clean(requested) // not the target of a link
	}
	return p, err
}

// locateDefault tries the sandbox's working directory, the user's home and "/", because the
// user may lack the permission to enter the image's directory.
func locateDefault(ctx context.Context, g sandpit.Guest, user string) (Place, error) {
	var p Place
	var err error
	for _, dir := range []string{"", sandpit.HomeDir, "/"} {
		p, err = locateIn(ctx, g, user, dir)
		if code := sandpit.CodeOf(err); code != sandpit.PermissionDenied && code != sandpit.Invalid {
			break
		}
	}
	return p, err
}

// locateIn starts the guest's program in a directory. "" is the sandbox's working directory.
func locateIn(ctx context.Context, g sandpit.Guest, user, dir string) (Place, error) {
	out, said := NewWindowOf(ctx, maxPlace, resultCost), NewWindowOf(ctx, maxPlace, resultCost)
	result, err := Execute(ctx, g, sandpit.Command{
		Args: []string{sandpit.GuestProgram, applet.Identity}, Stdin: strings.NewReader("{}"), Stdout: out, Stderr: said,
		User: user, Dir: dir, Timeout: locateTime,
	}, nil)
	if err != nil {
		return Place{}, err
	}
	var answer struct {
		Value applet.IdentityInfo `json:"value"`
	}
	if err := json.NewDecoder(bytes.NewReader([]byte(out.String()))).Decode(&answer); err != nil || result.ExitCode != 0 {
		return Place{}, sandpit.Errorf(sandpit.Internal, "the guest program ended with status %d and no valid response: %.400s", result.ExitCode, said.String())
	}
	return placeFrom(answer.Value)
}

// placeFrom checks and converts a sandbox's report. A guest of an earlier version reports no
// directories.
func placeFrom(info applet.IdentityInfo) (Place, error) {
	p := Place{Dir: info.Dir, State: info.State}
	if p.Dir == "" {
		p = Place{Dir: sandpit.DefaultWorkDir, State: sandpit.DefaultWorkDir}
	}
	if p.State == "" {
		p.State = p.Dir
	}
	for _, dir := range []string{p.Dir, p.State} {
		if !path.IsAbs(dir) || path.Clean(dir) != dir || len(dir) > maxDir || strings.ContainsRune(dir, 0) {
			return Place{}, sandpit.Errorf(sandpit.Internal, "the sandbox reports the directory %.100q", dir)
		}
	}
	return p, nil
}
