package daytona_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	apiclient "github.com/daytonaio/daytona/libs/api-client-go"
	toolboxclient "github.com/daytonaio/daytona/libs/toolbox-api-client-go"
)

// TestGoClients uses the generated Go clients, which refuse responses without a required field.
func TestGoClients(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	ctx := t.Context()
	c := apiclient.NewConfiguration()
	c.Servers = apiclient.ServerConfigurations{{URL: s.URL + "/api"}}
	c.AddDefaultHeader("Authorization", "Bearer "+s.key)
	c.AddDefaultHeader("X-Daytona-SDK-Version", "0.190.0")
	control := apiclient.NewAPIClient(c).SandboxAPI

	in := apiclient.NewCreateSandbox()
	in.SetName("strict")
	in.SetLabels(map[string]string{"client": "go"})
	in.SetEnv(map[string]string{"GREETING": "hello"})
	made, res, err := control.CreateSandbox(ctx).CreateSandbox(*in).Execute()
	check(t, "create", res, err)
	if made.GetState() != apiclient.SANDBOXSTATE_STARTED || made.GetName() != "strict" {
		t.Errorf("state %q, name %q", made.GetState(), made.GetName())
	}
	got, res, err := control.GetSandbox(ctx, "strict").Execute()
	check(t, "get", res, err)
	if got.GetId() != made.GetId() || got.GetEnv()["GREETING"] != "hello" {
		t.Errorf("ID %q, environment %v", got.GetId(), got.GetEnv())
	}
	list, res, err := control.ListSandboxes(ctx).Labels(`{"client":"go"}`).Execute()
	check(t, "list", res, err)
	if items := list.GetItems(); len(items) != 1 || items[0].GetId() != made.GetId() {
		t.Errorf("list: %d items", len(list.GetItems()))
	}
	preview, res, err := control.GetPortPreviewUrl(ctx, made.GetId(), 3000).Execute()
	check(t, "preview", res, err)
	if preview.GetUrl() == "" || preview.GetToken() == "" {
		t.Errorf("preview %q, token %q", preview.GetUrl(), preview.GetToken())
	}
	newGoClient(t, s, made.GetToolboxProxyUrl()+"/"+made.GetId()).checkAll()

	_, res, err = control.StopSandbox(ctx, made.GetId()).Execute()
	check(t, "stop", res, err)
	_, res, err = control.StartSandbox(ctx, made.GetId()).Execute()
	check(t, "start", res, err)
	_, res, err = control.DeleteSandbox(ctx, made.GetId()).Execute()
	check(t, "delete", res, err)
	_, res, err = control.GetSandbox(ctx, made.GetId()).Execute()
	if err == nil || res == nil || res.StatusCode != http.StatusNotFound {
		t.Errorf("get after delete: %v", err)
	}
	closeBody(res)
}

// testFileClient uploads, describes, downloads and deletes a file.
func testFileClient(ctx context.Context, t *testing.T, files toolboxclient.FileSystemAPI) {
	t.Helper()
	local := filepath.Join(t.TempDir(), "upload")
	if err := os.WriteFile(local, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(local)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_, res, err := files.UploadFile(ctx).Path("/tmp/by-go/file").File(f).Execute()
	check(t, "upload", res, err)
	info, res, err := files.GetFileInfo(ctx).Path("/tmp/by-go/file").Execute()
	check(t, "get file information", res, err)
	if info.GetName() != "file" || info.GetSize() != 7 || info.GetIsDir() {
		t.Errorf("file %q of %d bytes, directory %v", info.GetName(), info.GetSize(), info.GetIsDir())
	}
	list, res, err := files.ListFiles(ctx).Path("/tmp/by-go").Execute()
	check(t, "list files", res, err)
	if len(list) != 1 || list[0].GetName() != "file" {
		t.Errorf("files: %d", len(list))
	}
	got, res, err := files.DownloadFile(ctx).Path("/tmp/by-go/file").Execute()
	check(t, "download", res, err)
	defer os.Remove(got.Name())
	defer got.Close()
	if text, err := io.ReadAll(got); err != nil || string(text) != "content" {
		t.Errorf("download: %q, %v", text, err)
	}
	res, err = files.DeleteFile(ctx).Path("/tmp/by-go/file").Execute()
	check(t, "delete a file", res, err)
	_, res, err = files.GetFileInfo(ctx).Path("/tmp/by-go/file").Execute()
	if err == nil || res == nil || res.StatusCode != http.StatusNotFound {
		t.Errorf("information about a deleted file: %v", err)
	}
	closeBody(res)
}

// check fails the test if a call failed, with the body of the response.
func check(t *testing.T, what string, res *http.Response, err error) {
	t.Helper()
	if err == nil {
		closeBody(res)
		return
	}
	var body []byte
	if e, ok := errors.AsType[*apiclient.GenericOpenAPIError](err); ok {
		body = e.Body()
	}
	if e, ok := errors.AsType[*toolboxclient.GenericOpenAPIError](err); ok {
		body = e.Body()
	}
	t.Fatalf("%s: %v: %s", what, err, body)
}

func closeBody(res *http.Response) {
	if res != nil {
		_ = res.Body.Close() // the clients have read it
	}
}

// TestEnv checks the variables that sandpit env daytona prints.
func TestEnv(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	var vars map[string]*string
	if err := json.Unmarshal([]byte(s.With("SANDPIT_API_KEY="+s.key).Output(t, "--server", s.URL, "env", "daytona", "--json")), &vars); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"DAYTONA_API_URL": s.URL + "/api", "DAYTONA_API_KEY": s.key}
	for name, value := range want {
		if vars[name] == nil || *vars[name] != value {
			t.Errorf("%s is %v, want %q", name, vars[name], value)
		}
	}
	for _, name := range []string{"DAYTONA_JWT_TOKEN", "DAYTONA_ORGANIZATION_ID", "DAYTONA_SERVER_URL", "DAYTONA_TARGET"} {
		if value, ok := vars[name]; !ok || value != nil {
			t.Errorf("%s is not unset", name)
		}
	}
}
