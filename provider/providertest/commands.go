package providertest

import (
	"fmt"
	"path"
	"strconv"
	"strings"
	"sync"

	"github.com/sandpit-dev/sandpit"
)

func commandChecks() []check {
	return []check{
		{"exit codes", exitCodes},
		{"cannot be started", cannotStart},
		{"another's program", anothersProgram},
		{"arguments arrive as they are", argumentsArrive},
		{"environment", environment},
		{"programs are looked up in the process's own path", lookedUp},
		{"working directory", workingDirectory},
		{"many wait for one", manyWait},
		{"many at once in one sandbox", manyCommands},
	}
}

func exitCodes(c *trial) {
	for _, code := range []int{0, 1, 2, 7, 126, 127, 128, 130, 255} {
		r := c.exec(shellCommand(`exit "$1"`, strconv.Itoa(code)))
		equal(c, fmt.Sprintf("status of exit %d", code), r.status, sandpit.ExitStatus{Code: code})
	}
}

func cannotStart(c *trial) {
	dir := c.dir()
	c.put(dir+"/data", "not a program")
	c.shell(`cd "$1"; printf '\001\002\003\004' > garbage; chmod 755 garbage`, dir)
	for name, tc := range map[string]struct {
		cmd  sandpit.Command
		code sandpit.Code
	}{
		"no command":              {sandpit.Command{}, sandpit.Invalid},
		"an empty command":        {sandpit.Command{Args: []string{""}}, sandpit.Invalid},
		"no such program":         {sandpit.Command{Args: []string{"no-such-program-anywhere"}}, sandpit.NotFound},
		"no such path":            {sandpit.Command{Args: []string{"/no/such/program"}}, sandpit.NotFound},
		"not executable":          {sandpit.Command{Args: []string{dir + "/data"}}, sandpit.PermissionDenied},
		"a directory":             {sandpit.Command{Args: []string{dir}}, sandpit.PermissionDenied},
		"not a program":           {sandpit.Command{Args: []string{dir + "/garbage"}}, sandpit.PermissionDenied},
		"no such directory":       {sandpit.Command{Args: []string{"true"}, Dir: "/no/such/dir"}, sandpit.Invalid},
		"a file as directory":     {sandpit.Command{Args: []string{"true"}, Dir: dir + "/data"}, sandpit.Invalid},
		"no such user":            {sandpit.Command{Args: []string{"true"}, User: "nobody-knows"}, sandpit.Invalid},
		"NUL in an argument":      {sandpit.Command{Args: []string{"echo", "a\x00b"}}, sandpit.Invalid},
		"no name of a variable":   {sandpit.Command{Args: []string{"true"}, Env: map[string]string{"": "x"}}, sandpit.Invalid},
		"an equals sign in one":   {sandpit.Command{Args: []string{"true"}, Env: map[string]string{"A=B": "x"}}, sandpit.Invalid},
		"NUL in a variable":       {sandpit.Command{Args: []string{"true"}, Env: map[string]string{"A": "x\x00y"}}, sandpit.Invalid},
		"NUL in the directory":    {sandpit.Command{Args: []string{"true"}, Dir: "/tmp\x00x"}, sandpit.Invalid},
		"an argument not in utf8": {sandpit.Command{Args: []string{"true", "\xff\xfe"}}, sandpit.Invalid},
	} {
		_, err := c.guest().Start(c.ctx(), tc.cmd)
		c.wantCode(err, name, tc.code)
	}
	equal(c, "after all these", c.shell("echo works"), "works\n")
}

func anothersProgram(c *trial) {
	if !c.Isolated {
		c.Skip("this provider's sandboxes have one user only")
	}
	dir := c.dir()
	c.shell(`printf '#!/bin/sh\n' > "$1/mine"; chmod 700 "$1/mine"`, dir)
	const other = "1234:1234"
	_, err := c.guest().Start(c.ctx(), sandpit.Command{Args: []string{dir + "/mine"}, User: other})
	c.wantCode(err, "a program of another user's", sandpit.PermissionDenied)
	r := c.exec(sandpit.Command{Args: []string{"sh", "-c", "id -u; id -g"}, User: other})
	equal(c, "user", r.stdout, "1234\n1234\n")
}

func argumentsArrive(c *trial) {
	args := []string{"", " ", "a b", "'", `"`, `\`, "$HOME", "*", "ä→🙂", "-n", "line\nbreak", "\t", strings.Repeat("x", 100_000)}
	r := c.exec(shellCommand(`for a; do printf '%s|' "$a"; done`, args...))
	equal(c, "arguments", r.stdout, strings.Join(args, "|")+"|")
}

func environment(c *trial) {
	variables := func(env map[string]string) string {
		cmd := shellCommand(`printf '%s|%s|%s|%s' "$SUITE_SPEC" "$SUITE_BOTH" "$SUITE_COMMAND" "$SUITE_NONE"`)
		cmd.Env = env
		return c.exec(cmd).stdout
	}
	own := map[string]string{"SUITE_BOTH": "from the command", "SUITE_COMMAND": "a = 'ä'\n"}
	equal(c, "with the command's own", variables(own), "from the spec|from the command|a = 'ä'\n|")
	equal(c, "without", variables(nil), "from the spec|from the spec||")
	equal(c, "usual variables", c.shell(`test -n "$PATH" && test -n "$HOME" && echo there`), "there\n")
	home := c.exec(sandpit.Command{Args: []string{"sh", "-c", `echo "$HOME"`}, Env: map[string]string{"HOME": "/else"}})
	equal(c, "a usual variable of the command's own", home.stdout, "/else\n")
}

func lookedUp(c *trial) {
	dir := c.dir()
	c.shell(`printf '#!/bin/sh\necho found "$0"\n' > "$1/some-program"; chmod 755 "$1/some-program"`, dir)
	r := c.exec(sandpit.Command{Args: []string{"some-program"}, Env: map[string]string{"PATH": "/no/such:" + dir + ":/usr/bin:/bin"}})
	equal(c, "by name", r.stdout, "found "+dir+"/some-program\n")
	r = c.exec(sandpit.Command{Args: []string{"./some-program"}, Dir: dir})
	if !strings.HasPrefix(r.stdout, "found ") {
		c.Errorf("relative to its directory: %+v", r)
	}
	_, err := c.guest().Start(c.ctx(), sandpit.Command{Args: []string{"sh"}, Env: map[string]string{"PATH": dir}})
	c.wantCode(err, "what is not in the process's path", sandpit.NotFound)
}

func workingDirectory(c *trial) {
	dir := c.dir()
	pwd := func(dir string) string {
		return strings.TrimSuffix(c.exec(sandpit.Command{Args: []string{"pwd"}, Dir: dir}).stdout, "\n")
	}
	equal(c, "absolute", pwd(dir), dir)
	equal(c, "default", pwd(""), c.workDir)
	equal(c, "of the root", pwd("/"), "/")
	home := c.home()
	equal(c, "home", pwd("~"), home)
	name := path.Base(dir)
	c.must(c.guest().MakeDir(c.ctx(), "", "~/"+name), "make a directory")
	defer func() { c.must(c.guest().Remove(c.ctx(), "", "~/"+name), "remove it") }()
	equal(c, "below home", pwd("~/"+name), path.Join(home, name))
	equal(c, "relative, which begins at home", pwd(name), path.Join(home, name))
}

// home returns the directory of relative paths in the shared sandbox.
func (c *trial) home() string {
	c.Helper()
	file, err := c.guest().Stat(c.ctx(), "", "~")
	c.must(err, "stat ~")
	return file.Path
}

func manyWait(c *trial) {
	p := c.start(shellCommand("sleep 0.1; exit 3"))
	ctx := c.ctx()
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			if status, err := p.Wait(ctx); err != nil || status.Code != 3 {
				c.Errorf("wait: %v, %v", status, err)
			}
		})
	}
	c.promptly("wait by many", wg.Wait)
	equal(c, "later", c.wait(p).Code, 3)
}

func manyCommands(c *trial) {
	const commands = 20
	ctx := c.ctx()
	var wg sync.WaitGroup
	for i := range commands {
		wg.Go(func() {
			var out strings.Builder
			cmd := shellCommand(`cat; sleep 0.1; exit "$1"`, strconv.Itoa(i))
			cmd.Stdin, cmd.Stdout = strings.NewReader(fmt.Sprint("number ", i)), &out
			p, err := c.guest().Start(ctx, cmd)
			if err != nil {
				c.Errorf("start %d: %v", i, err)
				return
			}
			status, err := p.Wait(ctx)
			if err != nil || status.Code != i || out.String() != fmt.Sprint("number ", i) {
				c.Errorf("command %d: %v, %v, %q", i, status, err, out.String())
			}
		})
	}
	c.promptly("many commands", wg.Wait)
}
