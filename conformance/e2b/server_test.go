package e2b_test

import (
	"os"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/testing/testserver"
)

// long is how long an operation may take that is not under test.
const long = testserver.Timeout

// server is a sandpit server whose template "base" is the image that the recipe makes. The template
// "code" has this machine's files: the packages of a code interpreter would make an image of more
// than a gigabyte.
type server struct {
	*testserver.Installation

	key    string // of an administrator
	domain string // of ports, with the server's port
}

// newServer starts a server. It ends with the test.
func newServer(tb testing.TB, settings ...string) *server {
	tb.Helper()
	return newServerBy(tb, nil, settings...)
}

// newServerBy starts a server by a launcher; see testserver.Options.
func newServerBy(tb testing.TB, launcher []string, settings ...string) *server {
	tb.Helper()
	settings = append([]string{"SANDPIT_E2B_TEMPLATES=code=host base=" + string(buildImage(tb))}, settings...)
	s := &server{Installation: testserver.Install(tb, testserver.Options{Settings: settings, Launcher: launcher})}
	s.domain = "localhost:" + s.URL[strings.LastIndexByte(s.URL, ':')+1:]
	s.key = s.NewKey(tb, "e2b", "--admin")
	return s
}

// clientEnviron returns what a program written for E2B needs in order to work here.
func (s *server) clientEnviron() []string {
	return append(withoutE2B(os.Environ()), "E2B_API_URL="+s.URL, "E2B_SANDBOX_URL="+s.URL, "E2B_API_KEY="+s.key)
}
