package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit/client"
)

func newAudit(a *app) *cobra.Command {
	cmd := newGroup("audit", "Check and export the audit trail of a server", `Check and export the audit trail of a server. sandpit events shows it.`,
		"  sandpit audit verify\n  sandpit audit export > events.jsonl")
	cmd.AddCommand(newAuditVerify(a), newAuditExport(a))
	return cmd
}

// auditExportCommand has the options of sandpit audit export.
type auditExportCommand struct {
	after int64
}

// newAuditExport returns the command that writes all events, page by page.
func newAuditExport(a *app) *cobra.Command {
	var o auditExportCommand
	cmd := &cobra.Command{
		Use:   "export [flags]",
		Short: "Write all events of the audit trail as lines of JSON",
		Long: `Write all events of the audit trail as lines of JSON, oldest first. An administrator's
key exports all events, another key those of its owner. Events that the server has
removed because of audit.max_age or audit.max_size are in its directory
audit.export_dir.`,
		Example:           "  sandpit audit export > events.jsonl\n  sandpit audit export --after 1200 | gzip > more.jsonl.gz",
		Args:              wantArgs(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.withClient(o.run),
	}
	cmd.Flags().Int64Var(&o.after, "after", 0, "only events after the one with this `number`")
	return cmd
}

func (o *auditExportCommand) run(ctx context.Context, a *app, c *client.Client, _ []string) error {
	out := bufio.NewWriter(a.Out)
	lines := json.NewEncoder(out)
	for {
		page, err := c.Events.List(ctx, client.EventFilter{After: o.after, Limit: exportPage})
		if err != nil {
			return err
		}
		for _, e := range page {
			if err := lines.Encode(e); err != nil {
				return err
			}
		}
		if len(page) < exportPage {
			return out.Flush()
		}
		o.after = page[len(page)-1].Seq
	}
}

// exportPage is the number of events in one request.
const exportPage = 500

// auditVerifyCommand has the options of sandpit audit verify.
type auditVerifyCommand struct {
	output
}

func newAuditVerify(a *app) *cobra.Command {
	var o auditVerifyCommand
	cmd := &cobra.Command{
		Use:   "verify [flags]",
		Short: "Check that the audit trail was not changed",
		Long: `Check that the audit trail was not changed: each event contains a digest of all events
before it. The exit status is 1 if it was changed. It needs an administrator's key.`,
		Example:           "  sandpit audit verify",
		Args:              wantArgs(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.withClient(o.run),
	}
	o.addFlags(cmd, "")
	return cmd
}

func (o *auditVerifyCommand) run(ctx context.Context, a *app, c *client.Client, _ []string) error {
	v, err := c.Events.Verify(ctx)
	if err != nil {
		return err
	}
	switch {
	case o.isJSON():
		err = printJSON(a.Out, v)
	case v.OK:
		_, err = fmt.Fprintf(a.Out, "The audit trail is unchanged: %s.\n", formatCount(int(v.Events), "event", "events"))
	default:
		_, err = fmt.Fprintf(a.Out, "The audit trail was changed: %s\n", escapeText(v.Reason))
	}
	if err == nil && !v.OK {
		err = exitStatus(statusNo)
	}
	return err
}
