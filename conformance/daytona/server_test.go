package daytona_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/testing/testserver"
)

// long is how long an operation may take that is not under test.
const long = testserver.Timeout

// server is a sandpit server whose sandboxes have this machine's files.
type server struct {
	*testserver.Installation

	key      string // of an ordinary owner
	otherKey string // of another
}

// newServer starts a server. It ends with the test.
func newServer(tb testing.TB, settings ...string) *server {
	tb.Helper()
	settings = append([]string{"SANDPIT_E2B_TEMPLATES=base=host"}, settings...)
	i := testserver.Install(tb, testserver.Options{Settings: settings})
	return &server{i, i.NewKey(tb, "daytona"), i.NewKey(tb, "other")}
}

// clientEnviron returns what a program written for Daytona needs in order to use the server,
// and what the tests need besides. Nothing else in the environment may change the SDKs.
func (s *server) clientEnviron() []string {
	own := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "DAYTONA_") || strings.HasPrefix(v, "E2B_")
	})
	return append(own, "DAYTONA_API_URL="+s.URL+"/api", "DAYTONA_API_KEY="+s.key,
		"SERVER_URL="+s.URL, "OTHER_API_KEY="+s.otherKey, "E2B_API_URL="+s.URL, "E2B_SANDBOX_URL="+s.URL, "E2B_API_KEY="+s.key)
}
