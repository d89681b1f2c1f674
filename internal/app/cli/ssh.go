package cli

import (
	"context"
	"errors"
	"io"
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

func (a *app) newSSH() *cobra.Command {
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
		RunE: a.verb(func(ctx context.Context, c *client.Client, args []string) error {
			id, err := find(ctx, c, args[0])
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
			return a.runSSH(ctx, program, sshCall{token: token, server: c.URL(), args: args[1:]})
		}),
	}
	cmd.Flags().SetInterspersed(false)
	return cmd
}

// sshCall is what ssh is to do.
type sshCall struct {
	token  api.SSHToken
	server string // where the token is from
	args   []string
}

// runSSH runs this machine's ssh. The token is in a file that only this user can read, and
// that is gone as soon as ssh is.
func (a *app) runSSH(ctx context.Context, program string, call sshCall) (err error) {
	dir, err := os.MkdirTemp("", "sandpit-ssh-") // with permissions 0700
	if err != nil {
		return sandpit.Errorf(sandpit.CodeOf(err), "make a directory for ssh: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	args, err := call.prepare(dir)
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

// prepare writes what ssh needs into a directory, and returns its arguments.
func (s sshCall) prepare(dir string) ([]string, error) {
	host, err := s.host()
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

// host is where the SSH server is: where it says, or where its API is.
func (s sshCall) host() (string, error) {
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

func (a *app) newSSHKey() *cobra.Command {
	cmd := group("ssh-key", "Register public keys for SSH with a server", `Register public keys for SSH with a server. Who has the private half reaches all
sandboxes of the owner: ssh -p 2222 ID@HOST. An administrator may do it for others.`,
		"  sandpit ssh-key add ~/.ssh/id_ed25519.pub\n  sandpit ssh-key ls")
	var owner string
	remove := &cobra.Command{
		Use:     "rm [flags] ID...",
		Aliases: []string{"remove"},
		Short:   "Remove public keys", Example: "  sandpit ssh-key rm 3fe1",
		Long:              "Remove public keys and close the connections that they have opened.",
		Args:              wantArgs(1, -1, "the ID of a key"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, c *client.Client, args []string) error {
			return a.eachName(ctx, args, func(ctx context.Context, id string) error { return c.SSHKeys.Remove(ctx, owner, id) })
		}),
	}
	addOwner(remove, &owner)
	cmd.AddCommand(a.newSSHKeyAdd(), a.newSSHKeyList(), remove)
	return cmd
}

// maxPublicKey bounds the file of a public key, in bytes.
const maxPublicKey = 16 << 10

func (a *app) newSSHKeyAdd() *cobra.Command {
	var o output
	var owner, name string
	cmd := &cobra.Command{
		Use:   "add [flags] FILE",
		Short: "Register a public key",
		Long:  `Register the public key of a .pub file; "-" is standard input. ssh-keygen makes one.`,
		Example: `  sandpit ssh-key add ~/.ssh/id_ed25519.pub
  ssh-add -L | head -1 | sandpit ssh-key add --name yubikey -`,
		Args: wantArgs(1, 1, "the file of a public key"),
		RunE: a.verb(func(ctx context.Context, c *client.Client, args []string) error {
			text, err := a.readSmall(args[0], maxPublicKey)
			if err != nil {
				return err
			}
			if strings.Contains(text, "PRIVATE KEY") { // it shall not leave this machine
				return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "%s is a private key, which is nobody else's business", args[0]),
					"give the public key: the file of the same name that ends in .pub")
			}
			key, err := c.SSHKeys.Add(ctx, owner, name, text)
			if err != nil {
				return err
			}
			return a.show(o, listing{document: key, ids: []string{key.ID}, rows: sshKeyRows([]api.SSHKey{key})})
		}),
	}
	o.add(cmd, "print the ID only")
	addOwner(cmd, &owner)
	cmd.Flags().StringVar(&name, "name", "", "`name` of the key, for people (default its comment)")
	return cmd
}

func (a *app) newSSHKeyList() *cobra.Command {
	var o output
	var owner string
	cmd := &cobra.Command{
		Use:     "ls [flags]",
		Aliases: []string{"list"},
		Short:   "List public keys", Example: "  sandpit ssh-key ls",
		Args:              wantArgs(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, c *client.Client, _ []string) error {
			list, err := c.SSHKeys.List(ctx, owner)
			if err != nil {
				return err
			}
			if list == nil {
				list = []api.SSHKey{}
			}
			l := listing{document: list, rows: sshKeyRows(list)}
			for _, k := range list {
				l.ids = append(l.ids, k.ID)
			}
			return a.show(o, l)
		}),
	}
	o.add(cmd, "print IDs only")
	addOwner(cmd, &owner)
	return cmd
}

func sshKeyRows(list []api.SSHKey) [][]string {
	rows := [][]string{{"ID", "NAME", "OWNER", "TYPE", "FINGERPRINT", "CREATED", "USED"}}
	for _, k := range list {
		rows = append(rows, []string{
			k.ID, orElse(k.Name, "-"), k.Owner, k.Type, k.Fingerprint, showAge(k.CreatedAt), showAge(k.LastUsedAt),
		})
	}
	return rows
}

// readSmall reads a file, or standard input for "-".
func (a *app) readSmall(name string, most int64) (string, error) {
	in := a.In
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return "", sandpit.Errorf(sandpit.CodeOf(err), "%w", err)
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, most+1))
	switch {
	case err != nil:
		return "", sandpit.Errorf(sandpit.CodeOf(err), "read %s: %w", name, err)
	case int64(len(text)) > most:
		return "", sandpit.Errorf(sandpit.Invalid, "%s: more than %d bytes", name, most)
	}
	return string(text), nil
}
