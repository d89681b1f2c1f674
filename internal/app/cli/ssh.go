package cli

import (
	"context"
	"errors"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
)

func newSSH(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ssh SANDBOX [SSH-ARGUMENT...]",
		Short: "Connect to a sandbox of a server with ssh",
		Long: `Connect to a sandbox of a server with this machine's ssh. The arguments after the name of the
sandbox are ssh's own: options and a command. The server must listen for SSH: see the option
--ssh of sandpit serve.

ssh logs in with a token that is valid for this connection only, and verifies the server by
the host key that the server reports here: it asks no questions, and writes nothing to
~/.ssh. After registering a key (see sandpit ssh-key), connect without sandpit:
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
		return sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "no program ssh on this machine"),
			"install the OpenSSH client, or use: sandpit shell")
	}
	token, err := c.Sandboxes.OpenSSH(ctx, id, 0)
	if err != nil {
		return err
	}
	return sshCall{token: token, server: c.URL(), args: args[1:]}.runSSH(ctx, a, program)
}

// sshCall is a call of ssh.
type sshCall struct {
	token api.SSHToken
	// server is the address of the server that issued the token.
	server string
	args   []string
}

// runSSH runs this machine's ssh. The token is in a file that only this user can read, and that
// is removed when ssh ends.
func (call sshCall) runSSH(ctx context.Context, a *app, program string) (err error) {
	dir, err := os.MkdirTemp("", "sandpit-ssh-") // with permissions 0700
	if err != nil {
		return sandpit.Errorf(sandpit.CodeOf(err), "create a directory for ssh: %w", err)
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
	hostKeyPattern = pattern.New(`^[A-Za-z0-9@.-]+ [A-Za-z0-9+/=]+$`)
	hostPattern    = pattern.New(`^[A-Za-z0-9][A-Za-z0-9.:%_-]*$`)
	userPattern    = pattern.New(`^[a-z0-9]+$`)
)

// writeFiles writes the files that ssh needs into a directory, and returns the arguments of ssh.
func (call sshCall) writeFiles(dir string) ([]string, error) {
	host, err := call.serverHost()
	if err != nil {
		return nil, err
	}
	// ssh would interpret other characters in its arguments and files.
	if !hostKeyPattern().MatchString(call.token.HostKey) || !hostPattern().MatchString(host) || !userPattern().MatchString(call.token.User) {
		return nil, sandpit.Errorf(sandpit.Internal, "the server returned an invalid SSH address, host key or user")
	}
	for _, f := range []struct {
		name, text string
		mode       os.FileMode
	}{
		{"token", call.token.Token + "\n", 0o600},
		{"known_hosts", "sandpit " + call.token.HostKey + "\n", 0o600},
		{"askpass", "#!/bin/sh\nexec cat " + "'" + strings.ReplaceAll(filepath.Join(dir, "token"), "'", `'\''`) + "'" + "\n", 0o700},
	} {
		if err := os.WriteFile(filepath.Join(dir, f.name), []byte(f.text), f.mode); err != nil {
			return nil, sandpit.Errorf(sandpit.CodeOf(err), "write the files for ssh: %w", err)
		}
	}
	args := []string{"-l", call.token.User, "-p", strconv.Itoa(call.token.Port)}
	for _, option := range []string{
		`UserKnownHostsFile="` + strings.ReplaceAll(filepath.Join(dir, "known_hosts"), "%", "%%") + `"`,
		"GlobalKnownHostsFile=/dev/null", "HostKeyAlias=sandpit", "StrictHostKeyChecking=yes", "UpdateHostKeys=no",
		"PreferredAuthentications=password", "PasswordAuthentication=yes", "PubkeyAuthentication=no", "NumberOfPasswordPrompts=1",
		"ControlMaster=no", "ControlPath=none", "ForwardAgent=no", "ForwardX11=no",
	} {
		args = append(args, "-o", option)
	}
	return append(append(args, host), call.args...), nil
}

// serverHost returns the host of the SSH server: the one it reports, or that of its API.
func (call sshCall) serverHost() (string, error) {
	if call.token.Host != "" {
		return call.token.Host, nil
	}
	u, err := url.Parse(call.server)
	if err != nil {
		return "", sandpit.Errorf(sandpit.Internal, "the server's address is not a valid URL")
	}
	if host := u.Hostname(); host != "" {
		return host, nil
	}
	return net.IPv4(127, 0, 0, 1).String(), nil // a socket is on this machine
}
