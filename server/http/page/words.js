"use strict";
// What the pages say, in two languages; the browser's first one chooses, and a button changes it.

const KEY = "pixelferry-key"; // in the storage of this tab
const LANGUAGE = "pixelferry-language";

const WORDS = {
  en: {
    status: "Status", chat: "Chat", fresh: "New chat", welcome: "Show it something, and ask.", welcomeText: "Ask something.",
    how: "Drop, paste or add {kinds}, or take one of these:",
    question: "Your question", ask: "Ask something. Enter sends, Shift+Enter starts a new line.",
    add: "Add a file", record: "Record", recording: "Stop recording", parameters: "Parameters", stop: "Stop", send: "Send",
    key: "API key (it stays in this tab)", useKey: "Use it", needsKey: "This server asks for an API key.",
    wrongKey: "This server does not know this API key.", noKey: "An API key has letters, digits and signs of ASCII only.",
    retry: "Retry", drop: "Drop the {n} after it?", edit: "Edit", cancel: "Cancel",
    editing: "You edit an earlier question. Sending it drops what stands after it.",
    copied: "Copied", copyAs: "Copy the request as", remove: "Remove", save: "Save the file",
    select: "Select and copy:", answered: "Answer:", you: "You", model: "Model", noAnswer: "(no words)",
    untold: "the next questions leave this one out", thoughts: "Thoughts",
    notTaken: "{name}: this model does not take {kind}.", unknownKind: "{name}: this is no picture, clip or sound.",
    lost: "gone with the reload, because it was too large to keep.", addAgain: "Add it again",
    lostAsked: "A reload took {names}. Add it again where it stood, edit its question, or begin a new chat.",
    otherKind: "{name} is none of the {kind}.",
    from: "{low} or more", fromTo: "{low} to {high}", above: "above {low}", aboveUpTo: "above {low}, up to {high}",
    anyWhole: "a whole number", noise: "; above {most} is noise", restOf: "the rest of {n}",
    default_max_tokens: "all that is left", default_temperature: "the model's", default_top_p: "the model's",
    default_top_k: "the model's", default_seed: "random", default_stop_text: "none",
    unread: "{name} can no longer be read, or is too large.",
    gone: "The server cannot be reached.", broke: "The answer broke off: the server ended the connection.",
    stopped: "stopped", first: "first token after {first} s", length: "cut at the limit of tokens", field: "field", request: "request", wait: "in {n} s again",
    facts: "{prompt} tokens read ({cached} from the cache), {written} written; first after {first} s, then {rate} a second",
    medium: "{tokens} tokens", sized: "seen as {width} × {height}", image: "pictures", video: "videos", audio: "sounds",
    noNumber: "{name}: this is no number.", noWhole: "{name}: whole numbers from -{most} to {most} only.",
    noMicrophone: "The microphone is not available.", takes: "takes {kinds}", text: "text",
    since: "since this page was opened, at most the last minute", children: "Processes", replicas: "Replicas", errors: "Last errors",
    slowest: "Slowest requests of the last five minutes", total: "seconds", stages: "of these", tokens: "tokens", times: "times",
    tokensOf: "{prompt} in ({cached} cached, {media} of media), {written} out",
    time: "time", route: "route", code: "code", id: "id", state: "state", age: "age", name: "name", none: "None.",
    answer: "status", replaced: "replaced", sinceOpened: "since this page was opened", restarts: "restarts", yes: "yes", no: "no",
    state_up: "up", state_starting: "starting", state_down: "down", state_failing: "failing", failed: "requests that failed",
    ofAll: "of {all}",
    running: "answers running", waiting: "waiting", requests: "requests a second", tokensOut: "tokens a second", kv: "KV cache in use",
    leases: "shared memory held", encoder: "encoder cache", prefixHits: "prefix cache hits", mediaHits: "media cache hits", ready: "ready",
    seconds: "{n} s", minutes: "{n} min", hours: "{n} h", off: "The server cannot be reached; trying again.",
  },
  zh: {
    status: "状态", chat: "对话", fresh: "新对话", welcome: "给它看点什么，然后提问。", welcomeText: "请提问。",
    how: "拖入、粘贴或添加{kinds}，或点一个例子：",
    question: "你的问题", ask: "请提问。回车发送，Shift+回车换行。",
    add: "添加文件", record: "录音", recording: "停止录音", parameters: "参数", stop: "停止", send: "发送",
    key: "API 密钥（只留在此标签页）", useKey: "使用", needsKey: "此服务器需要 API 密钥。",
    wrongKey: "此服务器不认识这个 API 密钥。", noKey: "API 密钥只含 ASCII 字母、数字和符号。",
    retry: "重试", drop: "删除其后的 {n} 个回答？", edit: "编辑", cancel: "取消",
    editing: "正在编辑之前的问题，发送后其后的内容会被删除。",
    copied: "已复制", copyAs: "复制请求为", remove: "移除", save: "保存文件",
    select: "请选中并复制：", answered: "回答：", you: "你", model: "模型", noAnswer: "（没有文字）",
    untold: "之后的提问不含这一问", thoughts: "思考过程",
    notTaken: "{name}：此模型不接受{kind}。", unknownKind: "{name}：这不是图片、视频或声音。",
    lost: "太大，无法保留，重新加载后已丢失。", addAgain: "重新添加",
    lostAsked: "重新加载后 {names} 已丢失。请在原处重新添加、编辑该问题，或开始新对话。",
    otherKind: "{name} 不是{kind}。",
    from: "不小于 {low}", fromTo: "{low} 到 {high}", above: "大于 {low}", aboveUpTo: "大于 {low}，不超过 {high}",
    anyWhole: "整数", noise: "；大于 {most} 时输出为噪声", restOf: "{n} 中剩余的部分",
    default_max_tokens: "全部剩余", default_temperature: "模型默认", default_top_p: "模型默认",
    default_top_k: "模型默认", default_seed: "随机", default_stop_text: "无",
    unread: "{name} 已无法读取，或太大。",
    gone: "无法连接服务器。", broke: "回答中断：服务器关闭了连接。",
    stopped: "已停止", first: "{first} 秒后出现第一个 token", length: "到达长度上限", field: "字段", request: "请求", wait: "{n} 秒后可重试",
    facts: "读入 {prompt} 个 token（缓存 {cached}），写出 {written} 个；{first} 秒后出现第一个，之后每秒 {rate} 个",
    medium: "{tokens} 个 token", sized: "看到的尺寸 {width} × {height}", image: "图片", video: "视频", audio: "声音",
    noNumber: "{name}：这不是数字。", noWhole: "{name}：只能是 -{most} 到 {most} 之间的整数。",
    noMicrophone: "无法使用麦克风。", takes: "接受{kinds}", text: "文字",
    since: "自打开本页起，最多一分钟", children: "进程", replicas: "副本", errors: "最近的错误",
    slowest: "最近五分钟内最慢的请求", total: "秒数", stages: "其中", tokens: "token", times: "次数",
    tokensOf: "读入 {prompt}（缓存 {cached}，媒体 {media}），写出 {written}",
    time: "时间", route: "路由", code: "代码", id: "编号", state: "状态", age: "时长", name: "名称", none: "无。",
    answer: "状态码", replaced: "替换次数", sinceOpened: "自打开本页起", restarts: "重启次数", yes: "是", no: "否",
    state_up: "正常", state_starting: "启动中", state_down: "停止", state_failing: "反复失败", failed: "失败的请求",
    ofAll: "共 {all}",
    running: "正在回答", waiting: "等待中", requests: "每秒请求", tokensOut: "每秒 token", kv: "KV 缓存使用",
    leases: "占用共享内存", encoder: "编码器缓存", prefixHits: "前缀缓存命中", mediaHits: "媒体缓存命中", ready: "就绪",
    seconds: "{n} 秒", minutes: "{n} 分钟", hours: "{n} 小时", off: "无法连接服务器，正在重试。",
  },
};

/** What this tab keeps, or this page alone where the browser forbids to keep anything. */
const storage = (() => {
  try {
    sessionStorage.getItem(KEY);
    return sessionStorage;
  } catch {
    const own = new Map();
    return { getItem: (name) => own.get(name) ?? null, setItem: (name, value) => own.set(name, value) };
  }
})();

let language = storage.getItem(LANGUAGE) ?? ((navigator.language || "en").toLowerCase().startsWith("zh") ? "zh" : "en");

function changeLanguage() {
  language = language === "zh" ? "en" : "zh";
  storage.setItem(LANGUAGE, language);
  speakAll();
}

/** A path of this server. A name and password in the page's own address are left out: a browser asks no such address. */
function at(path) {
  const url = new URL(path, document.baseURI);
  url.username = url.password = "";
  return url.href;
}

function say(word, values = {}) {
  return WORDS[language][word].replace(/\{(\w+)\}/g, (_, name) => String(values[name]));
}

/** Write all fixed words of the page again. */
function speak() {
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  for (const one of document.querySelectorAll("[data-word]")) one.textContent = say(one.dataset.word);
  const button = document.getElementById("language");
  button.textContent = language === "zh" ? "English" : "中文";
  button.lang = language === "zh" ? "en" : "zh";
}

/** An element with attributes; children are elements or texts, which are never read as HTML. */
function make(tag, attributes = {}, ...children) {
  const one = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") one.addEventListener(name, value);
    else if (value !== false && value !== undefined) one.setAttribute(name, value === true ? "" : value);
  }
  one.append(...children);
  return one;
}

function withKey(headers = {}) {
  const key = storage.getItem(KEY);
  return key ? { ...headers, Authorization: `Bearer ${key}` } : headers;
}

/** Say that the server asked for a key and show the field for it; `then` runs when there is one that a header can hold. */
function askForKey(then) {
  const field = document.getElementById("key");
  trouble(say(storage.getItem(KEY) ? "wrongKey" : "needsKey"));
  document.getElementById("keys").hidden = false;
  document.getElementById("take-key").onclick = () => {
    const key = field.value.trim();
    if (!/^[!-~]+$/.test(key)) return trouble(say("noKey"));
    storage.setItem(KEY, key);
    document.getElementById("keys").hidden = true;
    then();
  };
  field.onkeydown = (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    document.getElementById("take-key").click();
  };
  field.focus();
}
