package cli

import (
	"context"
	"errors"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/client"
)

func newSSH(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ssh SANDBOX [SSH-ARGUMENT...]",
		Short: "Work in a sandbox of a server with this machine's ssh",
		Long: `Work in a sandbox of a server with this machine's ssh. What follows the name of the
sandbox is ssh's own: options and a command. The server must listen for SSH: see the
option --ssh of sandpit serve.

ssh logs in with a token that is good for this connection only, and knows the server by
the key that it tells here: nothing is asked, and nothing is written to ~/.ssh. Who
registers a key (see sandpit ssh-key) needs no sandpit to come in:
ssh -p 2222 ID@HOST.

The exit status is ssh's, which is the command's, or 255.`,
		Example: `  sandpit ssh work
  sandpit ssh work uname -a
  sandpit ssh work -N -L 8080:localhost:80`,
		Args:              wantArgs(1, -1, "the name of a sandbox"),
		ValidArgsFunction: a.completeSandboxes(1),
		RunE:              a.withClient(runSSH),
	}
	cmd.Flags().SetInterspersed(false)
	return cmd
}

func runSSH(ctx context.Context, a *app, c *client.Client, args []string) error {
	id, err := findSandbox(ctx, c, args[0])
	if err != nil {
		return err
	}
	program, err := exec.LookPath("ssh")
	if err != nil {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "there is no program ssh on this machine"),
			"install OpenSSH's client, or use: sandpit shell")
	}
	token, err := c.Sandboxes.OpenSSH(ctx, id, 0)
	if err != nil {
		return err
	}
	return sshCall{token: token, server: c.URL(), args: args[1:]}.runSSH(ctx, a, program)
}

// sshCall is what ssh is to do.
type sshCall struct {
	token  api.SSHToken
	server string // where the token is from
	args   []string
}

// runSSH runs this machine's ssh. The token is in a file that only this user can read, and
// that is gone as soon as ssh is.
func (call sshCall) runSSH(ctx context.Context, a *app, program string) (err error) {
	dir, err := os.MkdirTemp("", "sandpit-ssh-") // with permissions 0700
	if err != nil {
		return sandpit.Errorf(sandpit.CodeOf(err), "make a directory for ssh: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	args, err := call.writeFiles(dir)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.In, a.Out, a.Err
	cmd.Env = append(slices.Clone(a.options.Environ),
		"SSH_ASKPASS="+filepath.Join(dir, "askpass"), "SSH_ASKPASS_REQUIRE=force")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	err = cmd.Run()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok && failed.Exited() {
		return exitStatus(failed.ExitCode())
	}
	if err != nil {
		return sandpit.Errorf(sandpit.Internal, "ssh: %w", err)
	}
	return nil
}

var (
	hostKeyPattern = regexp.MustCompile(`^[A-Za-z0-9@.-]+ [A-Za-z0-9+/=]+$`)
	hostPattern    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.:%_-]*$`)
	userPattern    = regexp.MustCompile(`^[a-z0-9]+$`)
)

// writeFiles writes what ssh needs into a directory, and returns its arguments.
func (s sshCall) writeFiles(dir string) ([]string, error) {
	host, err := s.serverHost()
	if err != nil {
		return nil, err
	}
	// They go to a program that would take them for more than they are.
	if !hostKeyPattern.MatchString(s.token.HostKey) || !hostPattern.MatchString(host) || !userPattern.MatchString(s.token.User) {
		return nil, sandpit.Errorf(sandpit.Internal, "the server tells of an SSH server that cannot be")
	}
	for _, f := range []struct {
		name, text string
		mode       os.FileMode
	}{
		{"token", s.token.Token + "\n", 0o600},
		{"known_hosts", "sandpit " + s.token.HostKey + "\n", 0o600},
		{"askpass", "#!/bin/sh\nexec cat " + "'" + strings.ReplaceAll(filepath.Join(dir, "token"), "'", `'\''`) + "'" + "\n", 0o700},
	} {
		if err := os.WriteFile(filepath.Join(dir, f.name), []byte(f.text), f.mode); err != nil {
			return nil, sandpit.Errorf(sandpit.CodeOf(err), "write down what ssh needs: %w", err)
		}
	}
	args := []string{"-l", s.token.User, "-p", strconv.Itoa(s.token.Port)}
	for _, option := range []string{
		`UserKnownHostsFile="` + strings.ReplaceAll(filepath.Join(dir, "known_hosts"), "%", "%%") + `"`,
		"GlobalKnownHostsFile=/dev/null", "HostKeyAlias=sandpit", "StrictHostKeyChecking=yes", "UpdateHostKeys=no",
		"PreferredAuthentications=password", "PasswordAuthentication=yes", "PubkeyAuthentication=no", "NumberOfPasswordPrompts=1",
		"ControlMaster=no", "ControlPath=none", "ForwardAgent=no", "ForwardX11=no",
	} {
		args = append(args, "-o", option)
	}
	return append(append(args, host), s.args...), nil
}

// serverHost is where the SSH server is: where it says, or where its API is.
func (s sshCall) serverHost() (string, error) {
	if s.token.Host != "" {
		return s.token.Host, nil
	}
	u, err := url.Parse(s.server)
	if err != nil {
		return "", sandpit.Errorf(sandpit.Internal, "the server's address is no URL")
	}
	if host := u.Hostname(); host != "" {
		return host, nil
	}
	return net.IPv4(127, 0, 0, 1).String(), nil // its socket is on this machine
}
