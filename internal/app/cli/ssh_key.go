package cli

import (
	"cmp"
	"context"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/client"
)

func newSSHKey(a *app) *cobra.Command {
	cmd := newGroup("ssh-key", "Register public keys for SSH with a server", `Register public keys for SSH with a server. The private key then opens all sandboxes of the
owner: ssh -p 2222 ID@HOST. Administrators can register keys for other owners.`,
		"  sandpit ssh-key add ~/.ssh/id_ed25519.pub\n  sandpit ssh-key ls")
	cmd.AddCommand(newSSHKeyAdd(a), newSSHKeyList(a), newSSHKeyRemove(a))
	return cmd
}

// sshKeyAddCommand has the options of sandpit ssh-key add.
type sshKeyAddCommand struct {
	output
	owner, name string
}

func newSSHKeyAdd(a *app) *cobra.Command {
	var o sshKeyAddCommand
	cmd := &cobra.Command{
		Use:   "add [flags] FILE",
		Short: "Register a public key",
		Long:  `Register the public key of a .pub file; "-" is standard input. ssh-keygen creates one.`,
		Example: `  sandpit ssh-key add ~/.ssh/id_ed25519.pub
  ssh-add -L | head -1 | sandpit ssh-key add --name yubikey -`,
		Args: wantArgs(1, 1, "the file of a public key"),
		RunE: a.withClient(o.run),
	}
	o.addFlags(cmd, "print the ID only")
	addOwner(cmd, &o.owner)
	cmd.Flags().StringVar(&o.name, "name", "", "`name` of the key (default its comment)")
	return cmd
}

func (o *sshKeyAddCommand) run(ctx context.Context, a *app, c *client.Client, args []string) error {
	text, err := a.readSmallFile(args[0], maxPublicKey)
	if err != nil {
		return err
	}
	if strings.Contains(text, "PRIVATE KEY") { // it must not leave this machine
		return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "%s is a private key; it must stay on this machine", args[0]),
			"use the public key: the file of the same name with .pub at its end")
	}
	key, err := c.SSHKeys.Add(ctx, o.owner, o.name, text)
	if err != nil {
		return err
	}
	return a.showListing(o.output, listing{document: key, ids: []string{key.ID}, rows: sshKeyRows([]api.SSHKey{key})})
}

// maxPublicKey bounds the file of a public key, in bytes.
const maxPublicKey = 16 << 10

// sshKeyListCommand has the options of sandpit ssh-key ls.
type sshKeyListCommand struct {
	output
	owner string
}

func newSSHKeyList(a *app) *cobra.Command {
	var o sshKeyListCommand
	cmd := &cobra.Command{
		Use:     "ls [flags]",
		Aliases: []string{"list"},
		Short:   "List public keys", Example: "  sandpit ssh-key ls",
		Args:              wantArgs(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.withClient(o.run),
	}
	o.addFlags(cmd, "print IDs only")
	addOwner(cmd, &o.owner)
	return cmd
}

func (o *sshKeyListCommand) run(ctx context.Context, a *app, c *client.Client, _ []string) error {
	list, err := c.SSHKeys.List(ctx, o.owner)
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
	return a.showListing(o.output, l)
}

func sshKeyRows(list []api.SSHKey) [][]string {
	rows := [][]string{{"ID", "NAME", "OWNER", "TYPE", "FINGERPRINT", "CREATED", "USED"}}
	for _, k := range list {
		rows = append(rows, []string{
			k.ID, cmp.Or(k.Name, "-"), k.Owner, k.Type, k.Fingerprint, formatAge(k.CreatedAt), formatAge(k.LastUsedAt),
		})
	}
	return rows
}

// sshKeyRemoveCommand has the options of sandpit ssh-key rm.
type sshKeyRemoveCommand struct {
	owner string
}

func newSSHKeyRemove(a *app) *cobra.Command {
	var o sshKeyRemoveCommand
	cmd := &cobra.Command{
		Use:     "rm [flags] ID...",
		Aliases: []string{"remove"},
		Short:   "Remove public keys", Example: "  sandpit ssh-key rm 3fe1",
		Long:              `Remove public keys and close the connections opened with them.`,
		Args:              wantArgs(1, -1, "the ID of a key"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.withClient(o.run),
	}
	addOwner(cmd, &o.owner)
	return cmd
}

func (o *sshKeyRemoveCommand) run(ctx context.Context, a *app, c *client.Client, args []string) error {
	return a.forEachName(ctx, args, func(ctx context.Context, id string) error { return c.SSHKeys.Remove(ctx, o.owner, id) })
}

// readSmallFile reads a file, or standard input for "-".
func (a *app) readSmallFile(name string, most int64) (string, error) {
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
