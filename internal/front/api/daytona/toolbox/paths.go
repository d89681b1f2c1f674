package toolbox

import (
	"context"
	"io/fs"
	"path"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// maxPath is the maximum number of bytes of a path.
const maxPath = 4096

// codeFilePath is the code of a path that no file can have.
const codeFilePath = "INVALID_FILE_PATH"

// filePath returns a path of a request for file calls and programs. Relative paths begin at the
// working directory; "~" is the user's home directory.
func (c *call) filePath(ctx context.Context, name, p string) (string, error) {
	switch {
	case p == "":
		return "", withCode(codeFilePath, sandpit.Errorf(sandpit.Invalid, "%s is missing", name))
	case len(p) > maxPath:
		return "", withCode(codeFilePath, sandpit.Errorf(sandpit.Invalid, "%s has %d bytes, want at most %d", name, len(p), maxPath))
	case strings.ContainsRune(p, 0):
		return "", withCode(codeFilePath, sandpit.Errorf(sandpit.Invalid, "%s contains a NUL byte", name))
	case path.IsAbs(p):
		return path.Clean(p), nil
	}
	start := c.workDir
	if rest, found := strings.CutPrefix(p, "~"); found && (rest == "" || rest[0] == '/') {
		start, p = c.homeDir, rest
	}
	dir, err := start(ctx)
	if err != nil {
		return "", err
	}
	return path.Join(dir, p), nil
}

// queryPath returns the path in a parameter of the query.
func (c *call) queryPath(ctx context.Context, name string) (string, error) {
	return c.filePath(ctx, name, c.r.URL.Query().Get(name))
}

// withCode returns an error that is sent with a code of Daytona and the status of its
// sandpit.Code.
func withCode(code string, err error) error {
	return withStatus(err, toStatus(sandpit.CodeOf(err)), code)
}

// toFileError adds the code of a failed file call.
func toFileError(err error) error {
	switch sandpit.CodeOf(err) {
	case sandpit.NotFound:
		return withCode("FILE_NOT_FOUND", err)
	case sandpit.PermissionDenied:
		return withCode("FILE_ACCESS_DENIED", err)
	default:
		return err
	}
}

// maxLinks is how many symbolic links in a row are followed, like Linux.
const maxLinks = 40

// statTarget describes a file and follows links. Its path is that of the target.
func (c *call) statTarget(ctx context.Context, p string) (sandpit.File, error) {
	at := p
	for range maxLinks {
		f, err := c.guest.Stat(ctx, "", at)
		if err != nil {
			return f, toFileError(err)
		}
		if f.Mode&fs.ModeSymlink == 0 {
			return f, nil
		}
		if f.LinkTarget == "" || f.LinkTarget == at {
			break
		}
		at = f.LinkTarget
	}
	return sandpit.File{}, withCode("FILE_NOT_FOUND", sandpit.Errorf(sandpit.NotFound, "%s: the symbolic link has no target", p))
}
