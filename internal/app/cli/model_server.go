package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	modelscript "github.com/sandpit-dev/sandpit/agent/model/script"
)

// modelServerCommand has the options of sandpit model-server.
type modelServerCommand struct {
	listen string
}

func newModelServer(a *app) *cobra.Command {
	var o modelServerCommand
	cmd := &cobra.Command{
		Use:   "model-server [flags] SCRIPT",
		Short: "Serve a scripted language model, for tests and demonstrations",
		Long: `Serve the model of a script (docs/agent-models.md) with the protocols of OpenAI (chat
completions, responses) and Anthropic (messages), as strictly as the vendors do. Any API key
is accepted. At the end, the exit status is not 0 if a request was not what the script
expects.`,
		Example: `  sandpit model-server demo.toml
  SANDPIT_LLM_MODEL=demo SANDPIT_LLM_BASE_URL=http://127.0.0.1:8096/v1 SANDPIT_LLM_API_KEY=any sandpit doctor`,
		Args: wantArgs(1, 1, "a script"),
		RunE: a.withoutClient(o.run),
	}
	cmd.Flags().StringVar(&o.listen, "listen", "127.0.0.1:8096", "TCP `address` to listen on; port 0 is any free one")
	return cmd
}

func (o *modelServerCommand) run(cmd *cobra.Command, a *app, args []string) error {
	ctx := cmd.Context()
	m, err := modelscript.Load(args[0])
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.listen)
	if err != nil {
		return sandpit.Errorf(sandpit.Invalid, "listen on %q: %w", o.listen, err)
	}
	server := &http.Server{Handler: modelscript.NewServer(m, modelscript.ServerOptions{}), ReadHeaderTimeout: time.Minute}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // requests that hang would never end
	defer stop()
	fmt.Fprintf(a.Err, "sandpit: model %q at http://%s\n", m.Name(), listener.Addr())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	if n := m.Unused(); n > 0 {
		fmt.Fprintf(a.Err, "sandpit: %d turns were not used\n", n)
	}
	return m.Err()
}
