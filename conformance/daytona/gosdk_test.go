package daytona_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/coder/websocket"
	toolboxclient "github.com/daytonaio/daytona/libs/toolbox-api-client-go"

	"github.com/sandpit-dev/sandpit/internal/testing/testsdk"
)

// goClient makes the calls that Daytona's SDK for Go makes to a sandbox: those of the generated
// clients, and the WebSockets and forms that the SDK builds by itself.
type goClient struct {
	*testing.T

	url    string
	header http.Header
	api    *toolboxclient.APIClient
}

// newGoClient returns a client of the sandbox whose toolbox API has a URL.
func newGoClient(t *testing.T, s *server, url string) *goClient {
	t.Helper()
	c := toolboxclient.NewConfiguration()
	c.Servers = toolboxclient.ServerConfigurations{{URL: url}}
	g := &goClient{T: t, url: url, header: make(http.Header)}
	for name, value := range map[string]string{
		"Authorization": "Bearer " + s.key, "X-Daytona-Source": "sdk-go", "X-Daytona-SDK-Version": "0.190.0",
	} {
		c.AddDefaultHeader(name, value)
		g.header.Set(name, value)
	}
	c.UserAgent = "sdk-go/0.190.0"
	g.api = toolboxclient.NewAPIClient(c)
	return g
}

// checkAll checks each part of the SDK, at the same time.
func (g *goClient) checkAll() {
	g.Helper()
	parts := map[string]func(*goClient){
		"commands": (*goClient).checkCommands, "sessions": (*goClient).checkSessions, "terminals": (*goClient).checkTerminals,
		"interpreter": (*goClient).checkInterpreter, "files": (*goClient).checkFiles, "transfers": (*goClient).checkTransfers,
		"git": (*goClient).checkGit,
	}
	g.Run("toolbox", func(t *testing.T) {
		for name, check := range parts {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				own := *g
				own.T = t
				check(&own)
			})
		}
	})
}

// dial opens a WebSocket below the URL of the toolbox API.
func (g *goClient) dial(path string) *websocket.Conn {
	g.Helper()
	url := "ws" + strings.TrimPrefix(g.url, "http") + path
	conn, _, err := websocket.Dial(g.Context(), url, &websocket.DialOptions{HTTPHeader: g.header})
	if err != nil {
		g.Fatalf("dial %s: %v", path, err)
	}
	g.Cleanup(func() { _ = conn.CloseNow() }) // the test may have closed it
	return conn
}

// readAll returns the frames of a WebSocket and how the server closed it.
func (g *goClient) readAll(conn *websocket.Conn) (frames []string, closed websocket.CloseError) {
	g.Helper()
	ctx, cancel := context.WithTimeout(g.Context(), long)
	defer cancel()
	for {
		_, frame, err := conn.Read(ctx)
		if err != nil {
			if !errors.As(err, &closed) {
				g.Fatalf("read a WebSocket: %v", err)
			}
			return frames, closed
		}
		frames = append(frames, string(frame))
	}
}

// wantError checks the error of a call by its status and its code, and closes the response.
func (g *goClient) wantError(what string, res *http.Response, err error, status int, code string) {
	g.Helper()
	defer closeBody(res)
	var failure struct{ Code, Message, Source string }
	generic, ok := errors.AsType[*toolboxclient.GenericOpenAPIError](err)
	if !ok || res.StatusCode != status || json.Unmarshal(generic.Body(), &failure) != nil || failure.Code != code || failure.Source != "DAYTONA_DAEMON" {
		g.Errorf("%s: %v, %+v; want %d %s", what, err, failure, status, code)
	}
}

func (g *goClient) checkCommands() {
	ctx, process := g.Context(), g.api.ProcessAPI
	req := toolboxclient.NewExecuteRequest("pwd; echo $GREETING >&2; exit 3")
	req.SetCwd("/tmp")
	ran, res, err := process.ExecuteCommand(ctx).Request(*req).Execute()
	check(g.T, "execute", res, err)
	if ran.GetResult() != "/tmp\nhello\n" || ran.GetExitCode() != 3 {
		g.Errorf("execute: %q, exit code %d", ran.GetResult(), ran.GetExitCode())
	}
	req = toolboxclient.NewExecuteRequest("sleep 100")
	req.SetTimeout(1)
	_, res, err = process.ExecuteCommand(ctx).Request(*req).Execute()
	g.wantError("a timeout", res, err, http.StatusRequestTimeout, "PROCESS_EXECUTION_TIMEOUT")
	work, res, err := g.api.InfoAPI.GetWorkDir(ctx).Execute()
	check(g.T, "get the working directory", res, err)
	home, res, err := g.api.InfoAPI.GetUserHomeDir(ctx).Execute()
	check(g.T, "get the home directory", res, err)
	if !strings.HasPrefix(work.GetDir(), "/") || !strings.HasPrefix(home.GetDir(), "/") {
		g.Errorf("the working directory is %q, the home directory %q", work.GetDir(), home.GetDir())
	}
	session, res, err := process.GetEntrypointSession(ctx).Execute()
	if check(g.T, "get the entrypoint's session", res, err); session.GetSessionId() == "" {
		g.Error("the entrypoint's session has no ID")
	}
	_, res, err = process.GetEntrypointLogs(ctx).Execute()
	check(g.T, "get the entrypoint's logs", res, err)
	run, res, err := process.CodeRun(ctx).Request(*toolboxclient.NewCodeRunRequest("print(40 + 2)", "python")).Execute()
	if check(g.T, "run code", res, err); run.GetResult() != "42\n" || run.GetExitCode() != 0 {
		g.Errorf("code: %q, exit code %d", run.GetResult(), run.GetExitCode())
	}
}

func (g *goClient) checkSessions() {
	ctx, process := g.Context(), g.api.ProcessAPI
	res, err := process.CreateSession(ctx).Request(*toolboxclient.NewCreateSessionRequest("go")).Execute()
	check(g.T, "create a session", res, err)
	req := toolboxclient.NewSessionExecuteRequest("read x; echo \"got $x\"; echo err >&2; exit 3")
	req.SetRunAsync(true)
	req.SetSuppressInputEcho(true)
	started, res, err := process.SessionExecuteCommand(ctx, "go").Request(*req).Execute()
	check(g.T, "start a command", res, err)
	id := started.GetCmdId()
	stream := g.dial("/process/session/go/command/" + id + "/logs?follow=true")
	res, err = process.SendInput(ctx, "go", id).Request(*toolboxclient.NewSessionSendInputRequest("in")).Execute()
	check(g.T, "send input", res, err)
	frames, closed := g.readAll(stream)
	const stdout, stderr = "\x01\x01\x01got in\n", "\x02\x02\x02err\n" // pipes of their own: their order is not fixed
	if all := strings.Join(frames, ""); all != stdout+stderr && all != stderr+stdout || closed.Code != websocket.StatusNormalClosure {
		g.Errorf("the followed log: %q, closed with %v", all, closed)
	}
	logs, res, err := process.GetSessionCommandLogs(ctx, "go", id).Execute()
	if check(g.T, "get logs", res, err); logs.GetStdout() != "got in\n" || logs.GetStderr() != "err\n" {
		g.Errorf("logs: %+v", logs)
	}
	cmd, res, err := process.GetSessionCommand(ctx, "go", id).Execute()
	if check(g.T, "get a command", res, err); cmd.GetExitCode() != 3 {
		g.Errorf("the exit code is %d", cmd.GetExitCode())
	}
	_, res, err = process.GetSessionCommand(ctx, "go", "missing").Execute()
	g.wantError("a missing command", res, err, http.StatusNotFound, "NOT_FOUND")
	list, res, err := process.ListSessions(ctx).Execute()
	if check(g.T, "list sessions", res, err); !slices.ContainsFunc(list, func(s toolboxclient.Session) bool { return s.GetSessionId() == "go" }) {
		g.Errorf("sessions: %+v", list)
	}
	res, err = process.DeleteSession(ctx, "go").Execute()
	check(g.T, "delete a session", res, err)
}

func (g *goClient) checkTerminals() {
	ctx, process := g.Context(), g.api.ProcessAPI
	req := toolboxclient.NewPtyCreateRequest()
	req.SetId("go")
	req.SetCols(80)
	req.SetRows(24)
	_, res, err := process.CreatePtySession(ctx).Request(*req).Execute()
	check(g.T, "create a terminal", res, err)
	conn := g.dial("/process/pty/go/connect")
	kind, first, err := conn.Read(ctx)
	if err != nil || kind != websocket.MessageText || !strings.Contains(string(first), `"connected"`) {
		g.Fatalf("the first frame: %q, %v", first, err)
	}
	info, res, err := process.ResizePtySession(ctx, "go").Request(*toolboxclient.NewPtyResizeRequest(100, 30)).Execute()
	if check(g.T, "resize", res, err); info.GetCols() != 100 || info.GetRows() != 30 {
		g.Errorf("the size is %d x %d", info.GetCols(), info.GetRows())
	}
	list, res, err := process.ListPtySessions(ctx).Execute()
	if check(g.T, "list terminals", res, err); len(list.GetSessions()) != 1 {
		g.Errorf("terminals: %+v", list.GetSessions())
	}
	if err := conn.Write(ctx, websocket.MessageBinary, []byte("stty size; exit 4\n")); err != nil {
		g.Fatal(err)
	}
	frames, closed := g.readAll(conn)
	if all := strings.Join(frames, ""); !strings.Contains(all, "30 100") || !strings.Contains(closed.Reason, `"exitCode":4`) {
		g.Errorf("the terminal: %q, closed with %v", all, closed)
	}
	req.SetId("killed")
	_, res, err = process.CreatePtySession(ctx).Request(*req).Execute()
	check(g.T, "create a terminal", res, err)
	_, res, err = process.DeletePtySession(ctx, "killed").Execute()
	check(g.T, "kill a terminal", res, err)
	_, res, err = process.GetPtySession(ctx, "killed").Execute()
	g.wantError("a killed terminal", res, err, http.StatusNotFound, "NOT_FOUND")
}

func (g *goClient) checkInterpreter() {
	testsdk.Need(g.T, "python3")
	ctx, contexts := g.Context(), g.api.InterpreterAPI
	req := toolboxclient.NewCreateContextRequest()
	req.SetCwd("/tmp")
	made, res, err := contexts.CreateInterpreterContext(ctx).Request(*req).Execute()
	if check(g.T, "create a context", res, err); made.GetCwd() != "/tmp" || !made.GetActive() {
		g.Errorf("the context: %+v", made)
	}
	for _, tc := range []struct {
		code, want string
		timeout    int
		closed     websocket.StatusCode
	}{
		{"import os; x = 41; print(os.getcwd())", `{"type":"stdout","text":"/tmp\n"}`, 60, websocket.StatusNormalClosure},
		{"print(x + 1)", `{"type":"stdout","text":"42\n"}`, 60, websocket.StatusNormalClosure},
		{"1/0", `{"type":"error","name":"ZeroDivisionError","value":"division by zero",`, 60, websocket.StatusNormalClosure},
		{"import time; time.sleep(100)", "", 1, 4001},
	} {
		conn := g.dial("/process/interpreter/execute")
		request, err := json.Marshal(map[string]any{"code": tc.code, "contextId": made.GetId(), "timeout": tc.timeout})
		if err == nil {
			err = conn.Write(ctx, websocket.MessageText, request)
		}
		if err != nil {
			g.Fatal(err)
		}
		frames, closed := g.readAll(conn)
		if all := strings.Join(frames, ""); !strings.HasPrefix(all, tc.want) || closed.Code != tc.closed {
			g.Errorf("%s: %q, closed with %v", tc.code, all, closed)
		}
	}
	list, res, err := contexts.ListInterpreterContexts(ctx).Execute()
	if check(g.T, "list contexts", res, err); len(list.GetContexts()) != 1 {
		g.Errorf("contexts: %+v", list.GetContexts())
	}
	_, res, err = contexts.DeleteInterpreterContext(ctx, made.GetId()).Execute()
	check(g.T, "delete a context", res, err)
}

func (g *goClient) checkFiles() {
	ctx, files := g.Context(), g.api.FileSystemAPI
	testFileClient(ctx, g.T, files)
	const dir = "/tmp/go files"
	res, err := files.CreateFolder(ctx).Path(dir + "/below").Mode("0755").Execute()
	check(g.T, "create a folder", res, err)
	g.upload(dir+"/below/a.txt", strings.NewReader("one\nneedle\n"))
	found, res, err := files.FindInFiles(ctx).Path(dir).Pattern("needle").Execute()
	if check(g.T, "find", res, err); len(found) != 1 || found[0].GetFile() != dir+"/below/a.txt" || found[0].GetLine() != 2 {
		g.Errorf("found %+v", found)
	}
	matches, res, err := files.SearchFiles(ctx).Path(dir).Pattern("*.txt").Execute()
	if check(g.T, "search", res, err); !slices.Equal(matches.GetFiles(), []string{dir + "/below/a.txt"}) {
		g.Errorf("files: %q", matches.GetFiles())
	}
	replaced, res, err := files.ReplaceInFiles(ctx).Request(*toolboxclient.NewReplaceRequest([]string{dir + "/below/a.txt"}, "pin", "needle")).Execute()
	if check(g.T, "replace", res, err); len(replaced) != 1 || !replaced[0].GetSuccess() {
		g.Errorf("replaced: %+v", replaced)
	}
	res, err = files.SetFilePermissions(ctx).Path(dir + "/below/a.txt").Mode("0600").Owner("root").Group("root").Execute()
	check(g.T, "set permissions", res, err)
	res, err = files.MoveFile(ctx).Source(dir + "/below/a.txt").Destination(dir + "/b.txt").Execute()
	check(g.T, "move", res, err)
	info, res, err := files.GetFileInfo(ctx).Path(dir + "/b.txt").Execute()
	if check(g.T, "get details", res, err); info.GetSize() != 8 || info.GetMode() != "-rw-------" {
		g.Errorf("%d bytes, mode %s", info.GetSize(), info.GetMode())
	}
	res, err = files.DeleteFile(ctx).Path(dir).Recursive(true).Execute()
	check(g.T, "delete a folder", res, err)
	_, res, err = files.ListFiles(ctx).Path(dir).Execute()
	g.wantError("list a deleted folder", res, err, http.StatusNotFound, "FILE_NOT_FOUND")
}

// upload streams a file as a form of one pair, and returns the status, or 0 if that failed.
func (g *goClient) upload(path string, content io.Reader) int {
	g.Helper()
	reader, writer := io.Pipe()
	form := multipart.NewWriter(writer)
	go func() {
		err := form.WriteField("files[0].path", path)
		part, partErr := form.CreateFormFile("files[0].file", path)
		if err = errors.Join(err, partErr); err == nil {
			_, err = io.Copy(part, content)
		}
		if err == nil {
			err = form.Close()
		}
		_ = writer.CloseWithError(err) // never fails
	}()
	res, err := g.post("/files/bulk-upload", form.FormDataContentType(), reader)
	if err != nil {
		return 0
	}
	closeBody(res)
	return res.StatusCode
}

// post sends a request that the SDK builds by itself.
func (g *goClient) post(path, contentType string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(g.Context(), http.MethodPost, g.url+path, body)
	if err != nil {
		return nil, err
	}
	req.Header = g.header.Clone()
	req.Header.Set("Content-Type", contentType)
	return http.DefaultClient.Do(req)
}

// download streams a file, and returns the name of its part and its content.
func (g *goClient) download(path string) (name, content string) {
	g.Helper()
	body, err := json.Marshal(toolboxclient.NewFilesDownloadRequest([]string{path}))
	if err != nil {
		g.Fatal(err)
	}
	res, err := g.post("/files/bulk-download", "application/json", bytes.NewReader(body))
	if err != nil {
		g.Fatal(err)
	}
	defer res.Body.Close()
	_, params, err := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if err != nil {
		g.Fatal(err)
	}
	part, err := multipart.NewReader(res.Body, params["boundary"]).NextPart()
	if err != nil {
		g.Fatal(err)
	}
	text, err := io.ReadAll(part)
	if err != nil {
		g.Fatal(err)
	}
	return part.FormName(), string(text)
}

// checkTransfers uploads to places where that is not simple.
func (g *goClient) checkTransfers() {
	const dir = "/tmp/go-transfers"
	g.execute("mkdir -p " + dir + "/dir; cd " + dir + "; echo old >target; ln -s target link; ln -s " + dir + "/made dangling; echo original >aborted")
	for _, name := range []string{"link", "dangling", "new/below/file"} {
		if status := g.upload(dir+"/"+name, strings.NewReader("via "+name)); status != http.StatusOK {
			g.Errorf("upload %s: status %d", name, status)
		}
		if part, text := g.download(dir + "/" + name); part != "file" || text != "via "+name {
			g.Errorf("%s: %s %q", name, part, text)
		}
	}
	if status := g.upload(dir+"/dir", strings.NewReader("x")); status != http.StatusBadRequest {
		g.Errorf("upload to a directory: status %d", status)
	}
	aborted := io.MultiReader(bytes.NewReader(make([]byte, 1<<20)), iotest.ErrReader(errors.New("aborted by the test")))
	if status := g.upload(dir+"/aborted", aborted); status == http.StatusOK {
		g.Error("an upload that was aborted succeeded")
	}
	if part, text := g.download(dir + "/missing"); part != "error" || !strings.Contains(text, "FILE_NOT_FOUND") {
		g.Errorf("a missing file: %s %q", part, text)
	}
	want := "aborted dangling dir link made new target\noriginal\nvia link\nvia dangling\n644\n"
	got := g.execute("cd " + dir + "; ls | xargs echo; cat aborted; for f in target made; do cat $f; echo; done; stat -c %a made; test -L link -a -L dangling")
	if got != want {
		g.Errorf("the directory: %q, want %q", got, want)
	}
}

// execute runs a command that must succeed, and returns its output.
func (g *goClient) execute(command string) string {
	g.Helper()
	ran, res, err := g.api.ProcessAPI.ExecuteCommand(g.Context()).Request(*toolboxclient.NewExecuteRequest(command)).Execute()
	if check(g.T, "execute", res, err); ran.GetExitCode() != 0 {
		g.Fatalf("%s: exit code %d: %s", command, ran.GetExitCode(), ran.GetResult())
	}
	return ran.GetResult()
}

func (g *goClient) checkGit() {
	testsdk.Need(g.T, "git")
	ctx, git := g.Context(), g.api.GitAPI
	const repo = "/tmp/go-repo"
	g.execute("git init -q --bare -b main /tmp/go.git; git clone -q /tmp/go.git /tmp/go-seed; cd /tmp/go-seed; git checkout -q -b main; " +
		"git -c user.name=a -c user.email=a@example.org commit -q --allow-empty -m one; git push -q origin main")
	clone := toolboxclient.NewGitCloneRequest(repo, "/tmp/go.git")
	clone.SetBranch("main")
	res, err := git.CloneRepository(ctx).Request(*clone).Execute()
	check(g.T, "clone", res, err)
	res, err = git.CreateBranch(ctx).Request(*toolboxclient.NewGitBranchRequest("topic", repo)).Execute()
	check(g.T, "create a branch", res, err)
	res, err = git.CheckoutBranch(ctx).Request(*toolboxclient.NewGitCheckoutRequest("topic", repo)).Execute()
	check(g.T, "check out", res, err)
	g.execute("echo x >" + repo + "/file")
	res, err = git.AddFiles(ctx).Request(*toolboxclient.NewGitAddRequest([]string{"file"}, repo)).Execute()
	check(g.T, "add", res, err)
	status, res, err := git.GetStatus(ctx).Path(repo).Execute()
	if check(g.T, "status", res, err); status.CurrentBranch != "topic" || len(status.FileStatus) != 1 || status.FileStatus[0].Staging != "Added" {
		g.Errorf("status: %+v", status)
	}
	made, res, err := git.CommitChanges(ctx).Request(*toolboxclient.NewGitCommitRequest("Ann", "ann@example.org", "two", repo)).Execute()
	check(g.T, "commit", res, err)
	history, res, err := git.GetCommitHistory(ctx).Path(repo).Execute()
	if check(g.T, "history", res, err); len(history) != 2 || history[0].GetHash() != made.GetHash() {
		g.Errorf("history: %+v, want %s first", history, made.GetHash())
	}
	res, err = git.PushChanges(ctx).Request(*toolboxclient.NewGitRepoRequest(repo)).Execute()
	check(g.T, "push", res, err)
	res, err = git.CheckoutBranch(ctx).Request(*toolboxclient.NewGitCheckoutRequest("main", repo)).Execute()
	check(g.T, "check out", res, err)
	res, err = git.PullChanges(ctx).Request(*toolboxclient.NewGitRepoRequest(repo)).Execute()
	check(g.T, "pull", res, err)
	branches, res, err := git.ListBranches(ctx).Path(repo).Execute()
	if check(g.T, "branches", res, err); !slices.Equal(branches.GetBranches(), []string{"main", "topic"}) {
		g.Errorf("branches: %q", branches.GetBranches())
	}
	res, err = git.DeleteBranch(ctx).Request(*toolboxclient.NewGitDeleteBranchRequest("topic", repo)).Execute()
	check(g.T, "delete a branch", res, err)
}
