package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/reach/workspace"
)

type urlCommand struct {
	output
	public, private, path, ticket bool
	expires, files, note          string
}

func newURL(a *app) *cobra.Command {
	var o urlCommand
	cmd := &cobra.Command{
		Use:   "url [flags] SANDBOX PORT",
		Short: "Print the preview URL of a port of a sandbox",
		Long: `Print the preview URL of a port of a sandbox.

The URL opens this port, and no other, until it expires. A browser that opens the URL gets a
cookie for the port. With --public everyone with the URL can open the port, and the URL does
not expire; --private ends that, and revokes all URLs that were printed before. With
--ticket the URL opens once, in one browser, which keeps access for an hour: use it for
links that others may read later.
With --files, a program of sandpit serves the files of a directory of the sandbox at the
port; it runs until it is killed or the sandbox stops.
The program at the port must speak HTTP; it may listen at 127.0.0.1 only.`,
		Example: `  sandpit url work 8000
  sandpit url --expires 7d --note "for the review" work 8000
  curl "$(sandpit url work 8000)"
  sandpit url --ticket work 8000
  sandpit url --files . work 8080
  sandpit url --public work 3000`,
		Args: wantArgs(2, 2, "the name of a sandbox or a port"),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			return a.completeSandboxes(1)(cmd, args, begun)
		},
		RunE: a.withoutClient(o.run),
	}
	o.addFlags(cmd, "print the URL only (the default)")
	f := cmd.Flags()
	f.BoolVar(&o.public, "public", false, "let everyone with the URL open the port")
	f.BoolVar(&o.private, "private", false, "close the port except for the URL that is printed now")
	f.BoolVar(&o.path, "path", false, "print a URL at the address that all previews share, for use without DNS names")
	f.StringVar(&o.files, "files", "", "serve the files of this `directory` of the sandbox at the port, such as . for the working directory")
	f.StringVar(&o.expires, "expires", "", "`time` that the URL is valid, such as 10m or 7d, at most 30d (default 1h); with --ticket at most 5m (default 30s)")
	f.BoolVar(&o.ticket, "ticket", false, "print a URL that opens once")
	f.StringVar(&o.note, "note", "", "`text` for sandpit token ls, such as the purpose of the URL; not with --ticket")
	return cmd
}

func (o *urlCommand) run(cmd *cobra.Command, a *app, args []string) error {
	if o.public && o.private {
		return usageError(cmd, "--public and --private exclude each other")
	}
	if o.note != "" && (o.ticket || o.public) {
		return usageError(cmd, "--note needs a URL with its own token; it cannot be used with --ticket or --public")
	}
	return a.withClient(o.printURL)(cmd, args)
}

func (o *urlCommand) printURL(ctx context.Context, a *app, c *client.Client, args []string) error {
	port, ok := portNumber(args[1], 1)
	if !ok {
		return sandpit.Errorf(sandpit.Invalid, "port %.20q: want 1 to 65535", args[1])
	}
	expires, err := parseAge("--expires", o.expires)
	if err != nil {
		return err
	}
	id, err := findSandbox(ctx, c, args[0])
	if err != nil {
		return err
	}
	if o.files != "" {
		if err := workspace.ShowFiles(ctx, c.Sandboxes.Open(id).Guest(), o.files, port); err != nil {
			return err
		}
	}
	document, byName, byPath, err := o.openPort(ctx, c, id, port, expires)
	if err != nil {
		return err
	}
	text := byName
	if o.path {
		text = byPath
	}
	switch {
	case o.isJSON():
		return a.showListing(o.output, listing{document: document})
	case text == "" && o.path:
		return sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "the server has no previews by path"), "set preview.listen in the server's configuration")
	case text == "":
		return sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "the server has no address for previews"),
			"let it listen at an address, or set preview.domain in its configuration; --path may work")
	}
	_, err = fmt.Fprintln(a.Out, escapeText(text))
	return err
}

// openPort changes the access to a port if requested, and returns the server's response and the
// URL, or the link of a ticket, by host name and by path.
func (o urlCommand) openPort(ctx context.Context, c *client.Client, id sandpit.ID, port int, expires time.Duration) (document any, byName, byPath string, err error) {
	switch {
	case o.public:
		err = c.Ports.SetPublic(ctx, id, port, true)
	case o.private:
		err = c.Ports.Close(ctx, id, port)
	}
	if err != nil {
		return nil, "", "", err
	}
	if o.ticket {
		t, err := c.Ports.Ticket(ctx, id, port, expires, 0)
		return t, t.URL, t.PathURL, err
	}
	u, err := c.Ports.URLWithNote(ctx, id, port, expires, o.note)
	return u, u.URL, u.PathURL, err
}
