package cli

import (
	"strings"

	"github.com/spf13/pflag"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
)

// gitFlags describe the repository that is cloned into a new sandbox.
type gitFlags struct {
	url, dir, password string
	depth              int
}

func (g *gitFlags) addFlags(f *pflag.FlagSet) {
	f.StringVar(&g.url, "git", "", "clone a repository into the sandbox, with its own git and network: `URL[#REF]`, where REF is a branch, tag or full commit hash")
	f.StringVar(&g.dir, "git-dir", "", "`directory` to clone into (default the repository's name, in the working directory)")
	f.IntVar(&g.depth, "git-depth", 0, "clone this `number` of commits of history (default all)")
	f.StringVar(&g.password, "git-password", "", "password or token for --git: the `NAME` of a variable of this shell, or NAME=@FILE")
}

func (g gitFlags) toRepository(a *app) (*api.Repository, error) {
	if g.url == "" {
		if g != (gitFlags{}) {
			return nil, sandpit.Errorf(sandpit.Invalid, "--git-dir, --git-depth and --git-password go with --git")
		}
		return nil, nil //nolint:nilnil // no repository is requested
	}
	r := api.Repository{Dir: g.dir, Depth: g.depth}
	r.URL, r.Ref, _ = strings.Cut(g.url, "#")
	if g.password == "" {
		return &r, nil
	}
	secrets, err := a.parseSecrets([]string{g.password})
	for _, value := range secrets {
		r.Password = value
	}
	return &r, err
}
